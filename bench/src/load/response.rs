//! Reads HTTP/1.1 answers from bytes: pure, and strict about what it does not understand.

use memchr::memmem;

/// Longest answer that is waited for, head and body.
pub(crate) const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// One whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Response {
    /// The status code.
    pub(crate) status: u16,
    /// Bytes of the head, with the empty line that ends it.
    pub(crate) head_bytes: usize,
    /// Bytes of head and body together.
    pub(crate) bytes: usize,
    /// The server will close the connection after it.
    pub(crate) closes: bool,
}

/// The bytes are not an HTTP/1.1 answer with a known length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The answer at the start of `bytes`; `None` when it is not whole yet.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Response>, Malformed> {
    let expected = b"HTTP/1.1 ";
    let known = bytes.len().min(expected.len());
    if bytes[..known] != expected[..known] {
        return Err(Malformed);
    }
    let Some(head_bytes) = memmem::find(bytes, b"\r\n\r\n") else {
        return incomplete(bytes.len());
    };
    let head = std::str::from_utf8(&bytes[..head_bytes]).map_err(|_| Malformed)?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.get(expected.len()..expected.len() + 3))
        .and_then(|status| status.parse::<u16>().ok())
        .filter(|status| (200..=599).contains(status))
        .ok_or(Malformed)?;

    let mut body_bytes = matches!(status, 204 | 304).then_some(0);
    let mut closes = false;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(Malformed)?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let length: usize = value.parse().map_err(|_| Malformed)?;
            body_bytes = Some(body_bytes.unwrap_or(length));
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Malformed);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        }
    }
    let body_bytes = body_bytes.ok_or(Malformed)?;
    let total = (head_bytes + 4).checked_add(body_bytes).ok_or(Malformed)?;
    if bytes.len() < total {
        return incomplete(total - 1);
    }
    Ok(Some(Response {
        status,
        head_bytes: head_bytes + 4,
        bytes: total,
        closes,
    }))
}

fn incomplete(bytes: usize) -> Result<Option<Response>, Malformed> {
    if bytes < RESPONSE_BYTES_MAX {
        Ok(None)
    } else {
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(answer: &str, expected: Result<Option<(u16, bool)>, Malformed>) {
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
        check("HTTP/1.1 200 OK\r\n\r\n", Err(Malformed));
        check(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            Err(Malformed),
        );
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            Err(Malformed),
        );
        check(
            "HTTP/1.1 2x0 OK\r\ncontent-length: 0\r\n\r\n",
            Err(Malformed),
        );
        check("SSH-2.0", Err(Malformed));
        check(
            "HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n",
            Err(Malformed),
        );
    }
}
