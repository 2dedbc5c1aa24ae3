//! Parses HTTP/1.1 responses, without I/O. Rejects responses with features that it does not support.

use httparse::{EMPTY_HEADER, Status};

/// Maximum size of a response, with headers; more than that to the largest batch of lookups.
const RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum number of headers; more than any edge sends.
const HEADERS_MAX: usize = 32;

/// Pseudo-status of a lookup with other matches than the stored ones.
pub(super) const WRONG: u16 = 0;

/// Pseudo-status of a lookup of which some DSPs or users were not read.
pub(super) const INCOMPLETE: u16 = 1;

/// Pseudo-status of a lookup that a server without status codes failed.
pub(super) const SERVER_ERROR: u16 = 2;

/// Names of the pseudo-statuses.
pub(super) const PSEUDO_STATUSES: [&str; 3] =
    ["wrong response", "incomplete response", "server error"];

/// A complete response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Response {
    /// The status code, or a pseudo-status.
    pub(super) status: u16,
    /// Size of headers and body.
    pub(super) bytes: usize,
    /// Size of the headers.
    pub(super) head_bytes: usize,
    /// Users found by a lookup.
    pub(super) hits: u64,
    /// Whether the server closes the connection.
    pub(super) closes: bool,
}

/// The bytes are not an HTTP/1.1 response with a known length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MalformedResponse;

/// Parses the response at the start of `bytes`; `None` if it is incomplete.
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
        head_bytes,
        hits: 0,
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
    fn check(response: &str, expected: Result<Option<(u16, bool)>, MalformedResponse>) {
        let parsed = parse(response.as_bytes());
        assert_eq!(
            parsed.map(|it| it.map(|it| (it.status, it.closes))),
            expected
        );
        if let Ok(Some(parsed)) = parsed {
            assert_eq!(parsed.bytes, response.len());
            for end in 0..response.len() {
                assert_eq!(parse(&response.as_bytes()[..end]), Ok(None), "{end}");
            }
        }
    }

    #[test]
    fn complete_responses_are_parsed() {
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
    fn response_without_known_length_is_malformed() {
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
