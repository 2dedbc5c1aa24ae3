//! Parses the head (request line and headers) of an HTTP/1 request, as far as ports of small requests need it. Does no I/O.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};

/// Maximum size of a request head; larger ones get a 431.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of headers; more get a 431.
const HEADERS_MAX: usize = 100;

/// A complete request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The path without the query.
    pub path: &'a str,
    /// The query without the question mark; empty without a query.
    pub query: &'a str,
    /// The header `Origin`, which browsers send with requests of scripts.
    pub origin: Option<&'a [u8]>,
    /// Size of the head in bytes.
    pub length: usize,
    /// Size in bytes of the body, which follows the head; `None` if it is unknown, or if the client waits before sending the body.
    pub body: Option<usize>,
    /// Whether the connection must be closed after the response, because the client requests it or uses HTTP/1.0.
    pub close: bool,
}

/// Why bytes cannot be parsed as a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadError {
    /// Not HTTP/1.
    Malformed,
    /// Too many bytes or headers.
    TooLarge,
}

/// Storage for parsed headers.
pub type Headers<'a> = [MaybeUninit<Header<'a>>; HEADERS_MAX];

/// Empty storage for [`parse`].
pub fn headers<'a>() -> Headers<'a> {
    [const { MaybeUninit::uninit() }; HEADERS_MAX]
}

/// Parses the first head in `bytes`, storing its headers in `storage`; `None` when it is incomplete.
///
/// # Errors
/// If no further bytes can turn the input into a valid head.
pub fn parse<'a, 'r>(
    bytes: &'a [u8],
    storage: &'r mut Headers<'a>,
) -> Result<Option<(Head<'a>, &'r [Header<'a>])>, HeadError> {
    let mut request = Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, storage) {
        Ok(Status::Complete(length)) if length <= HEAD_BYTES_MAX => length,
        Ok(Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => return Err(HeadError::TooLarge),
        Err(_) => return Err(HeadError::Malformed),
    };
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(HeadError::Malformed);
    };
    let (path, query) = split_target(target);
    let framing = Framing::of(request.headers);
    let head = Head {
        method,
        path,
        query,
        origin: framing.origin,
        length,
        body: framing.body,
        close: framing.close || version == 0,
    };
    Ok(Some((head, request.headers)))
}

/// The values of the Cookie headers.
pub fn cookies<'a>(headers: &[Header<'a>]) -> impl Iterator<Item = &'a [u8]> {
    // Not through `values`: a comparison with a constant name costs fewer instructions.
    headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("cookie"))
        .map(|header| header.value)
}

/// The values of the headers with this name.
pub fn values<'a>(headers: &[Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    let named = headers.iter();
    named
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
}

/// Splits a request target in origin or absolute form into path and query.
fn split_target(target: &str) -> (&str, &str) {
    let (target, _fragment) = split_at(target, b'#').unwrap_or((target, ""));
    let origin = if target.starts_with('/') {
        target
    } else {
        let authority = target.split_once("://").map_or(target, |(_, rest)| rest);
        &authority[authority.find(['/', '?']).unwrap_or(authority.len())..]
    };
    let (path, query) = split_at(origin, b'?').unwrap_or((origin, ""));
    // `http://host?query` has an empty path, which means the root.
    let root = path.is_empty() && !target.starts_with('/') && target.contains("://");
    (if root { "/" } else { path }, query)
}

/// Splits at the first occurrence of an ASCII character. Faster than `str::split_once`, whose searcher is not inlined.
fn split_at(text: &str, character: u8) -> Option<(&str, &str)> {
    let at = memchr::memchr(character, text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

/// What the headers state about the bytes after the head; and the origin, which is found in the same pass.
struct Framing<'a> {
    /// Length of the body; `None` if it is unknown, or if the client waits before sending the body.
    body: Option<usize>,
    /// The client requests that the connection is closed after the response.
    close: bool,
    origin: Option<&'a [u8]>,
}

impl<'a> Framing<'a> {
    fn of(headers: &[Header<'a>]) -> Self {
        let mut framing = Self {
            body: Some(0),
            close: false,
            origin: None,
        };
        let mut has_length = false;
        for Header { name, value } in headers {
            // Comparing lengths first rules out most headers.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => {
                    let mut options = value.split(|&byte| byte == b',');
                    framing.close |=
                        options.any(|it| it.trim_ascii().eq_ignore_ascii_case(b"close"));
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let is_first = !std::mem::replace(&mut has_length, true);
                    let length = content_length(value).filter(|_| is_first);
                    framing.body = framing.body.and(length);
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => framing.body = None,
                // The client waits for a `100 Continue` and may never send the body.
                6 if name.eq_ignore_ascii_case("expect") => framing.body = None,
                6 if name.eq_ignore_ascii_case("origin") => {
                    framing.origin = framing.origin.or(Some(value));
                }
                _ => {}
            }
        }
        framing
    }
}

fn content_length(value: &[u8]) -> Option<usize> {
    let value = value.trim_ascii();
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &str, expected: Result<Option<(&str, &str, &str, bool)>, HeadError>) {
        let mut storage = headers();
        let parsed = parse(bytes.as_bytes(), &mut storage);
        let parsed = parsed
            .map(|parsed| parsed.map(|(head, _)| (head.method, head.path, head.query, head.close)));
        assert_eq!(parsed, expected, "{bytes:?}");
    }

    #[test]
    fn target_is_split_in_all_forms() {
        let get = |target: &str| format!("GET {target} HTTP/1.1\r\n\r\n");
        let split = |path, query| Ok(Some(("GET", path, query, false)));
        check(&get("/"), split("/", ""));
        check(&get("/?d=1&b=a?b=/"), split("/", "d=1&b=a?b=/"));
        check(&get("/sync?d=1#b"), split("/sync", "d=1"));
        check(&get("http://host/sync?d=1"), split("/sync", "d=1"));
        check(&get("http://host?d=1"), split("/", "d=1"));
        check(&get("http://host"), split("/", ""));
        check(&get("*"), split("", ""));
        check(&get("?d=1"), split("", "d=1"));
    }

    #[track_caller]
    fn check_framing(lines: &str, body: Option<usize>, close: bool) {
        let bytes = format!("GET / HTTP/1.1\r\n{lines}\r\n");
        let mut storage = headers();
        let (head, _) = parse(bytes.as_bytes(), &mut storage).unwrap().unwrap();
        assert_eq!((head.body, head.close), (body, close), "{lines:?}");
    }

    #[test]
    fn length_of_the_body_and_close_are_those_of_the_headers() {
        check_framing("Host: x\r\n", Some(0), false);
        check_framing("Connection: keep-alive\r\n", Some(0), false);
        check_framing("Content-Length: 0\r\n", Some(0), false);
        check_framing("CONNECTION: x, Close\r\n", Some(0), true);
        check_framing("content-length: 16385\r\n", Some(16_385), false);
        for invalid in ["", "00x", "+1", "1, 1", "18446744073709551616"] {
            check_framing(&format!("content-length: {invalid}\r\n"), None, false);
        }
        let length = "content-length: 1\r\n";
        check_framing(&format!("{length}{length}"), None, false);
        check_framing(&format!("{length}Expect: 100-continue\r\n"), None, false);
        check_framing("Transfer-Encoding: chunked\r\n", None, false);
        check("GET / HTTP/1.0\r\n\r\n", Ok(Some(("GET", "/", "", true))));
    }

    #[test]
    fn partial_head_is_incomplete() {
        let complete = "GET /?d=1 HTTP/1.1\r\nCookie: uid=u\r\n\r\n";
        for end in 0..complete.len() {
            check(&complete[..end], Ok(None));
        }
        check(complete, Ok(Some(("GET", "/", "d=1", false))));
    }

    #[test]
    fn invalid_http_is_rejected() {
        check("garbage\r\n\r\n", Err(HeadError::Malformed));
        check("GET / HTTP/2.0\r\n\r\n", Err(HeadError::Malformed));
        check(
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            Err(HeadError::Malformed),
        );
        check("\0\u{1}\u{2}", Err(HeadError::Malformed));
        let proxy_header = "\r\n\r\n\0\r\nQUIT\n!\u{11}\0\u{c}";
        check(proxy_header, Err(HeadError::Malformed));
    }

    #[test]
    fn too_many_bytes_or_headers_are_rejected() {
        let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(HEAD_BYTES_MAX));
        check(&long, Err(HeadError::TooLarge));
        let long = format!("{long}\r\n\r\n");
        check(&long, Err(HeadError::TooLarge));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
        check(&many, Err(HeadError::TooLarge));
        let enough = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        check(&enough, Ok(Some(("GET", "/", "", false))));
    }

    #[test]
    fn all_cookie_headers_are_returned() {
        let bytes = b"GET / HTTP/1.1\r\nCookie: a=b\r\nX: y\r\ncOOKIE: \xff\r\n\r\n";
        let mut storage = headers();
        let (_, headers) = parse(bytes, &mut storage).unwrap().unwrap();
        let cookies: Vec<_> = cookies(headers).collect();
        assert_eq!(cookies, [&b"a=b"[..], b"\xff"]);
    }
}
