//! Reads HTTP/1.1 answers from bytes: pure, and strict about what it does not understand.

use httparse::{EMPTY_HEADER, Status};

/// Longest answer that is waited for, head and body.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// More headers than any edge sends.
const HEADERS_MAX: usize = 32;

/// One whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Response {
    /// The status code.
    pub(super) status: u16,
    /// Bytes of head and body together.
    pub(super) bytes: usize,
    /// The server will close the connection after it.
    pub(super) closes: bool,
}

/// The bytes are not an HTTP/1.1 answer with a known length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedResponse;

/// The answer at the start of `bytes`; `None` when it is not whole yet.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Response>, MalformedResponse> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut headers);
    let head_bytes = match head.parse(bytes) {
        Ok(Status::Complete(head_bytes)) => head_bytes,
        Ok(Status::Partial) => return incomplete(bytes.len()),
        Err(_) => return Err(MalformedResponse),
    };
    let status = head.code.filter(|status| (200..=599).contains(status));
    let status = status.ok_or(MalformedResponse)?;
    let header = |name: &str| {
        let mut headers = head.headers.iter();
        let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    if header("transfer-encoding").is_some() {
        return Err(MalformedResponse);
    }
    let body_bytes = match header("content-length") {
        _ if matches!(status, 204 | 304) => 0,
        Some(length) => length.parse().map_err(|_| MalformedResponse)?,
        None => return Err(MalformedResponse),
    };
    let total = head_bytes
        .checked_add(body_bytes)
        .ok_or(MalformedResponse)?;
    if bytes.len() < total {
        return incomplete(total - 1);
    }
    Ok(Some(Response {
        status,
        bytes: total,
        closes: header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")),
    }))
}
fn incomplete(bytes: usize) -> Result<Option<Response>, MalformedResponse> {
    (bytes < RESPONSE_BYTES_MAX)
        .then_some(None)
        .ok_or(MalformedResponse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(answer: &str, expected: Result<Option<(u16, bool)>, MalformedResponse>) {
        let read = parse(answer.as_bytes());
        assert_eq!(
            read.map(|read| read.map(|read| (read.status, read.closes))),
            expected
        );
        if let Ok(Some(read)) = read {
            assert_eq!(read.bytes, answer.len());
            for end in 0..answer.len() {
                assert_eq!(parse(&answer.as_bytes()[..end]), Ok(None), "{end}");
            }
        }
    }

    #[test]
    fn whole_answers_are_read() {
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            Ok(Some((200, false))),
        );
        check(
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno\n",
            Ok(Some((400, true))),
        );
        check("HTTP/1.1 204 \r\n\r\n", Ok(Some((204, false))));
    }

    #[test]
    fn what_has_no_known_length_or_shape_is_malformed() {
        check("HTTP/1.1 200 OK\r\n\r\n", Err(MalformedResponse));
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            Err(MalformedResponse),
        );
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            Err(MalformedResponse),
        );
        check(
            "HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n",
            Err(MalformedResponse),
        );
        check("SSH-2.0", Err(MalformedResponse));
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n",
            Err(MalformedResponse),
        );
    }
}
