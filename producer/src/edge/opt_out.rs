//! The opt-out page (`--opt-out`) on the sync port, with which the user of a browser stops the recording of matches.
//!
//! `GET /optout` shows the page and changes nothing. Its form sends a POST, which a browser accepts only from a page of
//! the same origin. The POST sets or removes the opt-out cookie. When it sets the cookie, all cookies of the request's
//! user id are deleted on all nodes. Syncs with the opt-out cookie get the usual response and are not recorded.
//!
//! A form is valid for ten minutes, so that an old request cannot be replayed. Deletions are limited to `RATE` for all
//! browsers together, because any client can send such a POST with any user id.

use std::time::Duration;

use httparse::Header;
use prometheus::IntCounter;
use proto::{ids, limits::USER_ID_BYTES_MAX};
use tokio::time::Instant;

use super::{
    head::{self, Head},
    request::user_id,
};
use crate::{
    log::{Deletion, Log},
    rate_limits::{Rate, RateLimits},
    shaping::Shaping,
};

/// The path of the page.
pub(super) const PATH: &str = "/optout";

/// The name and value of the cookie.
const COOKIE: &[u8] = b"cookiesync_optout=1";

/// How long a browser keeps the cookie: 400 days, the maximum that browsers accept.
const COOKIE_SECONDS: u32 = 400 * 24 * 3600;

/// How long a form is valid.
const FORM_SECONDS: u64 = 600;

/// Rate limit of deletions by all browsers together, and its burst.
const RATE: Rate = ("20/s", 1_000);

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
    /// The rate of opt-outs exceeds its limit.
    Busy,
}

/// The opt-out page of one producer.
#[derive(Debug)]
pub struct OptOut {
    limit: RateLimits<(), 1>,
    deletions: IntCounter,
}

impl OptOut {
    /// Counts deletions in `deletions`.
    #[must_use]
    pub fn new(deletions: IntCounter) -> Self {
        Self {
            limit: RateLimits::new([RATE], 1),
            deletions,
        }
    }

    /// Responds to a request for the page; `None` if its method is not allowed.
    pub(super) fn handle(
        &self,
        head: &Head<'_>,
        lines: &[Header<'_>],
        log: &Log,
        shaping: Option<&Shaping>,
    ) -> Option<Page> {
        Some(match head.method {
            "GET" | "HEAD" if has_cookie(lines) => Page::OptIn,
            "GET" | "HEAD" => Page::OptOut,
            "POST" if is_valid_form(head.query, log.unix_micros()) && is_same_origin(lines) => {
                match parameter(head.query, "choice") {
                    Some("out") => self.opt_out(lines, log, shaping),
                    Some("in") => Page::OptedIn,
                    _ => Page::Forbidden,
                }
            }
            "POST" => Page::Forbidden,
            _ => return None,
        })
    }

    fn opt_out(&self, lines: &[Header<'_>], log: &Log, shaping: Option<&Shaping>) -> Page {
        let user_id = user_id(head::cookies(lines))
            .and_then(|value| ids::check_user_cookie(value, USER_ID_BYTES_MAX).ok());
        let Some(user_id) = user_id else {
            // The browser has no user id, so there is nothing to delete.
            return Page::OptedOut;
        };
        let charged = self
            .limit
            .charge(&[(0, ())], 1, Instant::now(), Duration::ZERO);
        if charged.is_err() {
            return Page::Busy;
        }
        let deletion = vec![Deletion {
            user_id: user_id.to_owned(),
            dsp_id: 0,
            until_unix_micros: None,
        }];
        if let Some(shaping) = shaping {
            shaping.delete(&deletion);
        }
        if log.append_deletions(deletion).is_err() {
            return Page::Busy;
        }
        self.deletions.inc();
        Page::OptedOut
    }
}

/// Whether a request carries the opt-out cookie.
pub(super) fn has_cookie(lines: &[Header<'_>]) -> bool {
    head::cookies(lines)
        .flat_map(|header| header.split(|&byte| byte == b';'))
        .any(|pair| pair.trim_ascii() == COOKIE)
}

/// Whether the `Origin` header states that a page of this origin sent the request. False without the header.
fn is_same_origin(lines: &[Header<'_>]) -> bool {
    let value = |name: &str| {
        let line = lines
            .iter()
            .find(|line| line.name.eq_ignore_ascii_case(name));
        line.map(|line| line.value)
    };
    // A proxy may have ended TLS, so the scheme is not known here.
    let origin = value("origin").and_then(|origin| {
        let origin = origin.strip_prefix(b"https:");
        origin
            .or_else(|| value("origin")?.strip_prefix(b"http:"))?
            .strip_prefix(b"//")
    });
    let is_same = origin.is_some() && origin == value("host");
    is_same && value("sec-fetch-site").is_none_or(|site| site == b"same-origin")
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut parameters = query.split('&');
    parameters.find_map(|it| it.strip_prefix(name)?.strip_prefix('='))
}

/// Whether the form is at most ten minutes old, with a tolerance of five minutes for the clocks of other producers.
fn is_valid_form(query: &str, now_micros: u64) -> bool {
    let shown = parameter(query, "at").and_then(|at| at.parse::<u64>().ok());
    let now = now_micros / 1_000_000;
    shown.is_some_and(|at| (now.saturating_sub(FORM_SECONDS)..=now + 300).contains(&at))
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

    /// The status line and the headers of this response only, without the last line break.
    pub(super) fn status_line(self) -> String {
        let seconds = match self {
            Self::OptOut | Self::OptIn => {
                return "200 OK\r\nvary: cookie\r\nx-frame-options: DENY\r\nreferrer-policy: same-origin\r\n\
                    content-security-policy: default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
                    .to_owned();
            }
            Self::OptedOut => COOKIE_SECONDS,
            Self::OptedIn => 0,
            Self::Forbidden => return "403 Forbidden".to_owned(),
            Self::Busy => return "503 Service Unavailable\r\nretry-after: 5".to_owned(),
        };
        format!(
            "303 See Other\r\nlocation: {PATH}\r\nset-cookie: cookiesync_optout=1; Max-Age={seconds}; Path=/; \
             Secure; HttpOnly; SameSite=None"
        )
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OptOut | Self::OptIn => "text/html; charset=utf-8",
            _ => "text/plain; charset=utf-8",
        }
    }

    /// The body, at this second since the Unix epoch.
    pub(super) fn body(self, now_seconds: u64) -> String {
        let (state, choice, button) = match self {
            Self::OptIn => (
                "This browser has opted out. Its syncs are not recorded.",
                "in",
                "Opt in again",
            ),
            Self::OptOut => (
                "Advertising partners may link this browser to their own ids. Opting out deletes these links on all our \
                 servers and stops the recording of new ones in this browser.",
                "out",
                "Opt out",
            ),
            Self::OptedOut | Self::OptedIn => return String::new(),
            Self::Forbidden => return "reload the opt-out page and use its button\n".to_owned(),
            Self::Busy => {
                return "too many opt-outs at the moment; retry in a few seconds\n".to_owned();
            }
        };
        format!(
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
             <title>Opt out</title><style>body{{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;\
             padding:0 1rem}}button{{font:inherit;padding:.5rem 1rem}}</style><h1>Opt out</h1><p>{state}</p>\
             <form method=post action='{PATH}?choice={choice}&amp;at={now_seconds}'><button>{button}</button></form></html>\n"
        )
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
            (
                vec![
                    host,
                    ("Origin", "https://sync.example"),
                    ("Sec-Fetch-Site", "same-site"),
                ],
                false,
            ),
        ] {
            assert_eq!(is_same_origin(&lines(&headers)), expected, "{headers:?}");
        }
    }

    #[test]
    fn form_is_valid_for_ten_minutes() {
        let now = 1_800_000_000;
        let is_valid = |at: u64| is_valid_form(&format!("choice=out&at={at}"), now * 1_000_000);
        assert!(is_valid(now) && is_valid(now - FORM_SECONDS) && is_valid(now + 300));
        assert!(!is_valid(now - FORM_SECONDS - 1) && !is_valid(now + 301));
        assert!(!is_valid_form("choice=out", now) && !is_valid_form("at=x", now));
    }

    #[test]
    fn opt_out_cookie_is_found_among_others_only_with_its_value() {
        let has = |value| has_cookie(&lines(&[("cookie", value)]));
        assert!(has("cookiesync_optout=1") && has("uid=u; cookiesync_optout=1;x=y"));
        assert!(!has("cookiesync_optout=0") && !has("xcookiesync_optout=1") && !has("uid=u"));
    }
}
