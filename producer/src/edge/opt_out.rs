//! The opt-out page (`--opt-out`) on the sync port, with which the user of a browser stops the recording of matches.
//!
//! `GET /optout` shows the page and changes nothing. Its form sends a POST, which a browser accepts only from a page of
//! the same origin. The POST sets or removes the opt-out cookie. When it sets the cookie, a deletion of the request's
//! user id is sent to all nodes. Syncs with the opt-out cookie get the usual response and are not recorded.

use httparse::Header;

use super::head::{self, Head};

/// The path of the page.
pub(super) const PATH: &str = "/optout";

/// The name and value of the cookie.
const COOKIE: &[u8] = b"cookiesync_optout=1";

/// The response to a request for the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The page, for a browser that has not opted out.
    OptOut,
    /// The page, for a browser that has opted out.
    OptIn,
    /// The choice to opt out was taken; the cookie is set.
    OptedOut,
    /// The choice to opt in again was taken; the cookie is removed.
    OptedIn,
    /// The POST does not come from the page.
    Forbidden,
    /// The rate of deletions exceeds its limit.
    Busy,
}

/// The response to a request for the page; `None` if its method is not allowed. If it is [`Page::OptedOut`], the cookies of
/// the user must be deleted.
pub(super) fn page(head: &Head<'_>, lines: &[Header<'_>]) -> Option<Page> {
    Some(match head.method {
        "GET" | "HEAD" if has_cookie(lines) => Page::OptIn,
        "GET" | "HEAD" => Page::OptOut,
        "POST" if !is_same_origin(lines) => Page::Forbidden,
        "POST" => match head.query {
            "choice=out" => Page::OptedOut,
            "choice=in" => Page::OptedIn,
            _ => Page::Forbidden,
        },
        _ => return None,
    })
}

/// Whether a request carries the opt-out cookie.
pub(super) fn has_cookie(lines: &[Header<'_>]) -> bool {
    head::cookies(lines)
        .flat_map(|header| header.split(|&byte| byte == b';'))
        .any(|pair| pair.trim_ascii() == COOKIE)
}

/// Whether the `Origin` header states that a page of this origin sent the request. False without the header.
fn is_same_origin(lines: &[Header<'_>]) -> bool {
    let value = |name| head::values(lines, name).next();
    // A proxy may have ended TLS, so the scheme is not known here. `Sec-Fetch-Site` covers it.
    let origin = value("origin").and_then(|origin| {
        let of_https = origin.strip_prefix(b"https://");
        of_https.or_else(|| origin.strip_prefix(b"http://"))
    });
    let is_same = origin.is_some() && origin == value("host");
    is_same && value("sec-fetch-site").is_none_or(|site| site == b"same-origin")
}

impl Page {
    /// The values of the metric label.
    pub(super) const LABELS: [&'static str; 6] = [
        "optout_page",
        "optout_page",
        "optout_set",
        "optout_removed",
        "optout_forbidden",
        "optout_busy",
    ];

    /// The status line and the headers of this response only, without the last line break. The cookie is kept for 400 days, the
    /// maximum that browsers accept.
    pub(super) fn status_line(self) -> &'static str {
        match self {
            Self::OptOut | Self::OptIn => {
                "200 OK\r\nvary: cookie\r\nx-frame-options: DENY\r\nreferrer-policy: same-origin\r\n\
                content-security-policy: default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
            }
            Self::OptedOut => {
                "303 See Other\r\nlocation: /optout\r\n\
                set-cookie: cookiesync_optout=1; Max-Age=34560000; Path=/; Secure; HttpOnly; SameSite=None"
            }
            Self::OptedIn => {
                "303 See Other\r\nlocation: /optout\r\n\
                set-cookie: cookiesync_optout=1; Max-Age=0; Path=/; Secure; HttpOnly; SameSite=None"
            }
            Self::Forbidden => "403 Forbidden",
            Self::Busy => "503 Service Unavailable\r\nretry-after: 5",
        }
    }

    pub(super) fn body(self) -> &'static str {
        match self {
            Self::OptOut => include_str!("opt_out/out.html"),
            Self::OptIn => include_str!("opt_out/in.html"),
            Self::OptedOut | Self::OptedIn => "",
            Self::Forbidden => "reload the opt-out page and use its button\n",
            Self::Busy => "too many deletions at the moment; retry in a few seconds\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines<'a>(lines: &[(&'a str, &'a str)]) -> Vec<Header<'a>> {
        let line = |&(name, value): &(&'a str, &'a str)| Header {
            name,
            value: value.as_bytes(),
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn only_a_page_of_the_same_origin_is_trusted() {
        let host = ("Host", "sync.example");
        for (headers, expected) in [
            (vec![host], false),
            (vec![host, ("Origin", "https://sync.example")], true),
            (vec![host, ("Origin", "http://sync.example")], true),
            (vec![host, ("Origin", "https://sync.example:8080")], false),
            (vec![host, ("Origin", "https://evil.example")], false),
            (vec![host, ("Origin", "null")], false),
            (vec![("Origin", "https://sync.example")], false),
            // An attacker on the network can serve the host over HTTP.
            (
                vec![
                    host,
                    ("Origin", "http://sync.example"),
                    ("Sec-Fetch-Site", "cross-site"),
                ],
                false,
            ),
        ] {
            assert_eq!(is_same_origin(&lines(&headers)), expected, "{headers:?}");
        }
    }

    #[test]
    fn opt_out_cookie_is_found_among_others_only_with_its_value() {
        let has = |value| has_cookie(&lines(&[("cookie", value)]));
        assert!(has("cookiesync_optout=1") && has("uid=u; cookiesync_optout=1;x=y"));
        assert!(!has("cookiesync_optout=0") && !has("xcookiesync_optout=1") && !has("uid=u"));
    }
}
