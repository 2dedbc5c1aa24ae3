//! The opt-out page (`--opt-out`) of the sync port, where the user of a browser can stop the recording of matches.
//!
//! `GET /optout` shows the page and changes nothing. Its form sends a POST, which a browser accepts only from a page of
//! the same origin. The POST sets or removes the opt-out cookie. When it sets the cookie, a deletion of the request's user
//! id is sent to all nodes. The delivery of the deletion is not checked. Sync requests with the opt-out cookie get the
//! usual response and are not recorded.
//!
//! Any client other than a browser can send such a POST with any user id, as often as it likes. A secret value in the
//! form would not prevent that: such a client can request the form, too. Deletions are therefore limited for each
//! client address, and for all clients together.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use httparse::Header;
use prometheus::IntCounter;
use proto::{ids, limits::USER_ID_BYTES_MAX};
use runtime::listen::addresses;
use tokio::time::Instant;

use super::{
    head::{self, Head},
    request::user_id,
};
use crate::{
    inlet::Inlet,
    log::Deletion,
    rate_limits::{Rate, RateLimits},
};

/// The path of the page.
pub(super) const PATH: &str = "/optout";

/// The name and value of the cookie.
const COOKIE: &[u8] = b"cookiesync_optout=1";

/// Rate limits of deletions with their bursts: for all clients together, and for one address, which many browsers may share.
const RATES: [Rate; 2] = [("20/s", 1_000), ("1/s", 50)];

/// Maximum number of tracked addresses: more than the total rate admits in the 50 s in which an address regains its burst.
const ADDRESSES_MAX: usize = 4_096;

/// The response to a request for the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The page, for a browser that has not opted out.
    OptOut,
    /// The page, for a browser that has opted out.
    OptIn,
    /// The user opted out; the cookie is set.
    OptedOut,
    /// The user opted in again; the cookie is removed.
    OptedIn,
    /// The POST does not come from the page.
    Forbidden,
    /// The rate of opt-outs exceeds its limit.
    Busy,
}

/// The opt-out page of one producer.
#[derive(Debug)]
pub struct OptOut {
    /// By the client's network; the key of the total is `None`.
    limits: RateLimits<Option<IpAddr>, 2>,
    deletions: IntCounter,
}

impl OptOut {
    /// Counts deletions in `deletions`.
    pub fn new(deletions: IntCounter) -> Self {
        Self {
            limits: RateLimits::new(RATES, ADDRESSES_MAX),
            deletions,
        }
    }

    /// Responds to a request for the page; `None` if its method is not allowed. If the client's address is unknown, the one in
    /// `X-Forwarded-For` counts.
    pub(super) fn handle(
        &self,
        head: &Head<'_>,
        lines: &[Header<'_>],
        client: Option<IpAddr>,
        inlet: &Inlet,
    ) -> Option<Page> {
        Some(match head.method {
            "GET" | "HEAD" if has_cookie(lines) => Page::OptIn,
            "GET" | "HEAD" => Page::OptOut,
            "POST" if !is_same_origin(lines) => Page::Forbidden,
            "POST" => match head.query {
                "choice=out" => {
                    let client = client.or_else(|| forwarded_for(lines));
                    self.opt_out(lines, client, inlet)
                }
                "choice=in" => Page::OptedIn,
                _ => Page::Forbidden,
            },
            _ => return None,
        })
    }

    fn opt_out(&self, lines: &[Header<'_>], client: Option<IpAddr>, inlet: &Inlet) -> Page {
        let user_id = user_id(head::cookies(lines))
            .and_then(|value| ids::check_user_cookie(value, USER_ID_BYTES_MAX).ok());
        let Some(user_id) = user_id else {
            // The browser has no user id, so there is nothing to delete.
            return Page::OptedOut;
        };
        let mut rates = vec![(0, None)];
        rates.extend(client.map(|client| (1, Some(addresses::network(client)))));
        let charged = self
            .limits
            .charge(&rates, 1, Instant::now(), Duration::ZERO);
        if charged.is_err() {
            return Page::Busy;
        }
        let deletion = vec![Deletion {
            user_id: user_id.to_owned(),
            dsp_id: 0,
            until_unix_micros: None,
        }];
        if inlet.delete(deletion).is_err() {
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
    let value = |name| head::values(lines, name).next();
    // A proxy may have ended TLS, so the scheme is not known here. `Sec-Fetch-Site` covers it.
    let origin = value("origin").and_then(|origin| {
        let of_https = origin.strip_prefix(b"https://");
        of_https.or_else(|| origin.strip_prefix(b"http://"))
    });
    let is_same = origin.is_some() && origin == value("host");
    is_same && value("sec-fetch-site").is_none_or(|site| site == b"same-origin")
}

/// The last address of `X-Forwarded-For`: the nearest proxy added it.
fn forwarded_for(lines: &[Header<'_>]) -> Option<IpAddr> {
    let last = head::values(lines, "x-forwarded-for").last()?;
    let last = str::from_utf8(last).ok()?.rsplit(',').next()?.trim();
    let address = last.parse::<IpAddr>().ok();
    address.or_else(|| Some(last.parse::<SocketAddr>().ok()?.ip()))
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
            Self::Busy => "too many opt-outs at the moment; retry in a few seconds\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inlet;

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

    #[tokio::test(start_paused = true)]
    async fn one_address_cannot_use_up_the_rate_of_all() {
        let opt_out = OptOut::new(IntCounter::new("deletions", "deletions").unwrap());
        let inlet = inlet::tests::without_limits();
        let opted_out = |forwarded: &str| {
            let lines = lines(&[
                ("Cookie", "uid=alice"),
                ("X-Forwarded-For", "203.0.113.9"),
                ("x-forwarded-for", forwarded),
            ]);
            let client = forwarded_for(&lines);
            let page = |_: &u64| opt_out.opt_out(&lines, client, &inlet) == Page::OptedOut;
            (0..100).filter(page).count()
        };
        // The client may send the header, too; the nearest proxy appends the last address.
        assert_eq!(opted_out("198.51.100.1"), 50);
        assert_eq!(opted_out("192.0.2.1, 198.51.100.1"), 0);
        assert_eq!(opted_out("198.51.100.1:567"), 0);
        assert_eq!(opted_out("2001:db8::1"), 50);
        assert_eq!(opted_out("2001:db8::2"), 0);
        assert_eq!(opted_out("198.51.100.2"), 50);
        for address in 0..20 {
            opted_out(&format!("192.0.2.{address}"));
        }
        assert_eq!(opted_out("198.51.100.3"), 0, "the rate of all is used up");
    }

    #[test]
    fn opt_out_cookie_is_found_among_others_only_with_its_value() {
        let has = |value| has_cookie(&lines(&[("cookie", value)]));
        assert!(has("cookiesync_optout=1") && has("uid=u; cookiesync_optout=1;x=y"));
        assert!(!has("cookiesync_optout=0") && !has("xcookiesync_optout=1") && !has("uid=u"));
    }
}
