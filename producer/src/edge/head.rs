//! The head of an HTTP/1 request, as far as this edge needs it. Pure: bytes in, a borrowed head or a refusal out.

use std::mem::MaybeUninit;

use httparse::{Error, Header, Request, Status};

/// The longest head of a request; a longer one is answered with 431.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The most header lines of a request; more are answered with 431.
const HEADERS_MAX: usize = 100;

/// The longest body that is skipped: it arrives with its head, in one read.
const BODY_BYTES_MAX: usize = HEAD_BYTES_MAX;

/// One complete head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The path of the target, without its query.
    pub path: &'a str,
    /// The query, without its question mark; empty when there is none.
    pub query: &'a str,
    /// Bytes of the head.
    pub length: usize,
    /// Bytes of the body, which follow the head and are skipped.
    pub body: usize,
    /// The connection must be closed after the response: the client asks for it, speaks HTTP/1.0, or sends a body that
    /// is long or whose end is uncertain.
    pub close: bool,
}

/// Why bytes are not a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// They are not HTTP/1.
    Malformed,
    /// There are too many of them.
    TooLarge,
}

/// Room for the header lines of a head.
pub type Headers<'a> = [MaybeUninit<Header<'a>>; HEADERS_MAX];

/// Empty room for [`parse`].
#[must_use]
pub fn headers<'a>() -> Headers<'a> {
    [const { MaybeUninit::uninit() }; HEADERS_MAX]
}

/// Parses the first head in `bytes`, and its header lines into `room`; `None` when it is incomplete.
///
/// # Errors
/// When no further bytes can make it a head.
pub fn parse<'a, 'r>(
    bytes: &'a [u8],
    room: &'r mut Headers<'a>,
) -> Result<Option<(Head<'a>, &'r [Header<'a>])>, Refusal> {
    let mut request = Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, room) {
        Ok(Status::Complete(length)) if length <= HEAD_BYTES_MAX => length,
        Ok(Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => return Err(Refusal::TooLarge),
        Err(_) => return Err(Refusal::Malformed),
    };
    let (Some(method), Some(target), Some(version)) =
        (request.method, request.path, request.version)
    else {
        return Err(Refusal::Malformed);
    };
    let (path, query) = split_target(target);
    let After { body, close } = After::of(request.headers);
    let head = Head {
        method,
        path,
        query,
        length,
        body: body.unwrap_or(0),
        close: close || version == 0 || body.is_none(),
    };
    Ok(Some((head, request.headers)))
}

/// The values of the Cookie header lines.
pub fn cookies<'a>(headers: &[Header<'a>]) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(|header| header.name.eq_ignore_ascii_case("cookie"))
        .map(|header| header.value)
}

/// Splits a request target, in origin form or in absolute form, into path and query.
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

/// Splits at the first such ASCII character. The searcher behind `str::split_once` is not inlined here, and costs a call or more.
fn split_at(text: &str, character: u8) -> Option<(&str, &str)> {
    let at = memchr::memchr(character, text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

/// What the header lines say about the bytes after the head.
struct After {
    /// The length of the body; `None` when its end is uncertain, or it is sent late.
    body: Option<usize>,
    /// The client asks to close the connection after the response.
    close: bool,
}

impl After {
    fn of(headers: &[Header<'_>]) -> Self {
        let mut after = Self {
            body: Some(0),
            close: false,
        };
        let mut has_length = false;
        for Header { name, value } in headers {
            // The length of the name rules out most header lines.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => {
                    let mut options = value.split(|&byte| byte == b',');
                    after.close |= options.any(|it| it.trim_ascii().eq_ignore_ascii_case(b"close"));
                }
                14 if name.eq_ignore_ascii_case("content-length") => {
                    let is_first = !std::mem::replace(&mut has_length, true);
                    let length = content_length(value).filter(|_| is_first);
                    after.body = after.body.and(length);
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => after.body = None,
                // The client waits for a `100 Continue` and may never send the body.
                6 if name.eq_ignore_ascii_case("expect") => after.body = None,
                _ => {}
            }
        }
        after
    }
}

fn content_length(value: &[u8]) -> Option<usize> {
    let value = value.trim_ascii();
    if !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length = std::str::from_utf8(value).ok()?.parse().ok()?;
    (length <= BODY_BYTES_MAX).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &str, expected: Result<Option<(&str, &str, &str, bool)>, Refusal>) {
        let mut room = headers();
        let parsed = parse(bytes.as_bytes(), &mut room);
        let parsed = parsed
            .map(|parsed| parsed.map(|(head, _)| (head.method, head.path, head.query, head.close)));
        assert_eq!(parsed, expected, "{bytes:?}");
    }

    #[test]
    fn target_is_split_in_every_form() {
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

    #[test]
    fn connection_is_kept_unless_client_or_body_say_otherwise() {
        let with = |lines: &str| format!("GET / HTTP/1.1\r\n{lines}\r\n");
        let closes = |close| Ok(Some(("GET", "/", "", close)));
        check(&with("Host: x\r\n"), closes(false));
        check(&with("Connection: keep-alive\r\n"), closes(false));
        check(&with("Content-Length: 0\r\n"), closes(false));
        check(&with("CONNECTION: x, Close\r\n"), closes(true));
        check(&with("content-length: 1\r\n"), closes(false));
        check(&with("content-length: 16384\r\n"), closes(false));
        check(&with("content-length: 16385\r\n"), closes(true));
        for unclear in ["", "00x", "+1", "1, 1", "18446744073709551616"] {
            check(
                &with(&format!("content-length: {unclear}\r\n")),
                closes(true),
            );
        }
        check(
            &with("content-length: 1\r\ncontent-length: 1\r\n"),
            closes(true),
        );
        check(
            &with("content-length: 1\r\nExpect: 100-continue\r\n"),
            closes(true),
        );
        check(&with("Transfer-Encoding: chunked\r\n"), closes(true));
        check("GET / HTTP/1.0\r\n\r\n", closes(true));
    }

    #[test]
    fn head_comes_in_pieces() {
        let whole = "GET /?d=1 HTTP/1.1\r\nCookie: uid=u\r\n\r\n";
        for end in 0..whole.len() {
            check(&whole[..end], Ok(None));
        }
        check(whole, Ok(Some(("GET", "/", "d=1", false))));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        check("garbage\r\n\r\n", Err(Refusal::Malformed));
        check("GET / HTTP/2.0\r\n\r\n", Err(Refusal::Malformed));
        check(
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            Err(Refusal::Malformed),
        );
        check("\0\u{1}\u{2}", Err(Refusal::Malformed));
    }

    #[test]
    fn too_many_bytes_or_lines_are_refused() {
        let long = format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(HEAD_BYTES_MAX));
        check(&long, Err(Refusal::TooLarge));
        let long = format!("{long}\r\n\r\n");
        check(&long, Err(Refusal::TooLarge));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
        check(&many, Err(Refusal::TooLarge));
        let enough = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        check(&enough, Ok(Some(("GET", "/", "", false))));
    }

    #[test]
    fn cookies_come_from_all_their_lines() {
        let bytes = b"GET / HTTP/1.1\r\nCookie: a=b\r\nX: y\r\ncOOKIE: \xff\r\n\r\n";
        let mut room = headers();
        let (_, lines) = parse(bytes, &mut room).unwrap().unwrap();
        let cookies: Vec<_> = cookies(lines).collect();
        assert_eq!(cookies, [&b"a=b"[..], b"\xff"]);
    }
}
