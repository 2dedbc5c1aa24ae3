//! The opt-out page (`--opt-out`) of the sync port, where the user of a browser can stop the recording of matches.
//!
//! `GET /optout` shows the page and changes nothing. Its form sends a POST, which must come from a page of the same
//! [`origin`]. The POST sets or removes the opt-out cookie. When it sets the cookie, a deletion of the request's user ids
//! is sent to all nodes. The delivery of the deletion is not checked. Sync requests with the opt-out cookie get the usual
//! response and are not recorded.
//!
//! # Partitioned cookies
//!
//! A browser without third-party cookies sends the opt-out cookie only to the site that set it. Such a browser has a user id
//! only in partitioned cookies, one for each website that embeds a sync. Its opt-out therefore holds only on a website that
//! shows this page in a frame (`--opt-out-frame-origin`), where the opt-out cookie is also set with the attribute
//! `Partitioned`: to the browser, the cookies with and without it are two cookies.
//!
//! Any client other than a browser can send such a POST with any user id, as often as it likes. A secret value in the
//! form would not prevent that: such a client can request the form, too. Deletions are therefore limited for each
//! client address, and for all clients together.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use httparse::Header;
use proto::wire::Scope;
use runtime::{
    http1::head::{self, Head},
    listen::addresses,
};
use tokio::time::Instant;

use super::{
    Edge,
    origin::{self, ForeignOrigin},
};
use crate::{
    log::Deletion,
    rate_limits::{Rate, RateLimits},
};

/// The path of the page.
pub(super) const PATH: &str = "/optout";

/// Rate limits of deletions with their bursts: for all clients together, and for one address, which many browsers may share.
const RATES: [Rate; 2] = [("20/s", 1_000), ("1/s", 50)];

/// Maximum number of user ids that one request deletes.
const USER_IDS_MAX: usize = 8;

/// Maximum number of tracked addresses: more than the total rate admits in the 50 s in which an address regains its burst.
const ADDRESSES_MAX: usize = 4_096;

/// The response to a request for the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// The page, for a browser that has not opted out.
    OptOut,
    /// The page, for a browser that has opted out.
    OptIn,
    /// The page, for a browser that has opted out on a page other than this.
    OptedOutElsewhere,
    /// The user opted out; the cookie is set.
    OptedOut,
    /// The user opted in again; the cookie is removed.
    OptedIn,
    /// The browser states that the POST does not come from the page.
    ForeignSite,
    /// The origin of the POST is not that of the page.
    ForeignOrigin,
    /// The query of the POST is not that of the page.
    UnknownChoice,
    /// The rate of opt-outs exceeds its limit.
    Busy,
}

/// Settings of the page.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Origins of this port at proxies that change the header `Host`.
    pub public_origins: Vec<String>,
    /// Origins of pages that may show the page in a frame.
    pub frame_origins: Vec<String>,
}

/// The opt-out page of one producer.
#[derive(Debug)]
pub struct OptOut {
    config: Config,
    /// By the client's network; the key of the total is `None`.
    limits: RateLimits<Option<IpAddr>, 2>,
}

impl OptOut {
    /// The page with this configuration.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            limits: RateLimits::new(RATES, ADDRESSES_MAX),
        }
    }

    /// Begins the response to a request for the page; `None` if its method is not allowed. If the client's address is unknown, the
    /// one in `X-Forwarded-For` counts. `has_plan`: browsers have hints.
    pub(super) fn handle(
        &self,
        head: &Head<'_>,
        lines: &[Header<'_>],
        client: Option<IpAddr>,
        edge: &Edge,
        has_plan: bool,
        output: &mut Vec<u8>,
    ) -> Option<Page> {
        let page = match head.method {
            "GET" | "HEAD" if edge.cookies.opted_out_elsewhere(head::cookies(lines)) => {
                Page::OptedOutElsewhere
            }
            "GET" | "HEAD" if edge.cookies.opted_out(head::cookies(lines)) => Page::OptIn,
            "GET" | "HEAD" => Page::OptOut,
            "POST" => match origin::check_same(lines, &self.config.public_origins) {
                Err(ForeignOrigin::Site) => Page::ForeignSite,
                Err(ForeignOrigin::Origin) => Page::ForeignOrigin,
                Ok(()) => match head.query {
                    "choice=out" => {
                        let client = client.or_else(|| forwarded_for(lines));
                        self.opt_out(lines, client, edge)
                    }
                    "choice=in" => Page::OptedIn,
                    _ => Page::UnknownChoice,
                },
            },
            _ => return None,
        };
        // Browsers that do not send this header do not know partitions either.
        let destination = head::values(lines, "sec-fetch-dest").next();
        let is_in_frame = destination.is_some_and(|it| it != b"document");
        let headers = match page {
            Page::OptedOut if has_plan => {
                edge.cookies.opt_out(is_in_frame) + &edge.cookies.remove_hints()
            }
            Page::OptedOut => edge.cookies.opt_out(is_in_frame),
            Page::OptedIn => edge.cookies.opt_in(is_in_frame),
            Page::OptOut | Page::OptIn | Page::OptedOutElsewhere => self.frame_headers(),
            _ => String::new(),
        };
        page.begin(&headers, output);
        Some(page)
    }

    /// The headers that select the pages with frames in which browsers show the page.
    fn frame_headers(&self) -> String {
        let (options, ancestors) = match &*self.config.frame_origins {
            [] => ("x-frame-options: DENY\r\n", "'none'".to_owned()),
            origins => ("", format!("'self' {}", origins.join(" "))),
        };
        format!(
            "vary: cookie\r\n{options}referrer-policy: same-origin\r\n\
             content-security-policy: default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors {ancestors}\r\n"
        )
    }

    fn opt_out(&self, lines: &[Header<'_>], client: Option<IpAddr>, edge: &Edge) -> Page {
        let user_ids = edge.cookies.user_ids(head::cookies(lines));
        let mut deletions = Vec::new();
        for user_id in user_ids.take(USER_IDS_MAX) {
            let deletion = Deletion {
                scope: Scope::User(user_id.to_owned()),
                until: None,
            };
            if !deletions.contains(&deletion) {
                deletions.push(deletion);
            }
        }
        let count = deletions.len() as u64;
        if count == 0 {
            // The browser has no user id, so there is nothing to delete.
            return Page::OptedOut;
        }
        let mut rates = vec![(0, None)];
        rates.extend(client.map(|client| (1, Some(addresses::network(client)))));
        let charged = self
            .limits
            .charge(&rates, count, Instant::now(), Duration::ZERO);
        if charged.is_err() || edge.inlet.delete(deletions, "optout").is_err() {
            return Page::Busy;
        }
        Page::OptedOut
    }
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
    pub(super) const LABELS: [&'static str; 9] = [
        "optout_page",
        "optout_page",
        "optout_page",
        "optout_set",
        "optout_removed",
        "optout_forbidden",
        "optout_forbidden",
        "optout_forbidden",
        "optout_busy",
    ];

    /// Appends the first lines of the response, with the headers of this request;
    /// [`Responses::write`](super::response::Responses::write) completes it.
    fn begin(self, headers: &str, output: &mut Vec<u8>) {
        let status = match self {
            Self::OptOut | Self::OptIn | Self::OptedOutElsewhere => {
                "200 OK\r\ncontent-type: text/html; charset=utf-8"
            }
            Self::OptedOut | Self::OptedIn => "303 See Other\r\nlocation: /optout",
            Self::ForeignSite | Self::ForeignOrigin | Self::UnknownChoice => {
                "403 Forbidden\r\ncontent-type: text/plain; charset=utf-8"
            }
            Self::Busy => {
                "503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 5"
            }
        };
        let lines = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\ncache-control: no-store\r\n{headers}",
            self.body().len()
        );
        output.extend_from_slice(lines.as_bytes());
    }

    pub(super) fn body(self) -> &'static str {
        match self {
            Self::OptOut => include_str!("opt_out/out.html"),
            Self::OptIn => include_str!("opt_out/in.html"),
            Self::OptedOutElsewhere => include_str!("opt_out/elsewhere.html"),
            Self::OptedOut | Self::OptedIn => "",
            Self::ForeignSite => {
                "header Sec-Fetch-Site is not same-origin: open the opt-out page and use its button\n"
            }
            Self::ForeignOrigin => {
                "header Origin is missing, or names neither the host in the header Host nor an origin of --public-origin: \
                 open the opt-out page and use its button; a proxy must pass Sec-Fetch-Site, Origin and Host on unchanged\n"
            }
            Self::UnknownChoice => {
                "the query is neither choice=out nor choice=in: open the opt-out page and use its button\n"
            }
            Self::Busy => "too many opt-outs at the moment; retry in a few seconds\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::metrics::Registry;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::edge::{connection::tests::edge_with, mint::UidMode};

    fn lines<'a>(lines: &[(&'a str, &'a str)]) -> Vec<Header<'a>> {
        let line = |&(name, value): &(&'a str, &'a str)| Header {
            name,
            value: value.as_bytes(),
        };
        lines.iter().map(line).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_cannot_use_up_the_rate_of_all() {
        let opt_out = OptOut::new(Config::default());
        let edge = edge_with(
            &Registry::new(),
            None,
            false,
            UidMode::Require,
            CancellationToken::new(),
        );
        let opted_out = |forwarded: &str| {
            let lines = lines(&[
                ("Cookie", "uid=alice"),
                ("X-Forwarded-For", "203.0.113.9"),
                ("x-forwarded-for", forwarded),
            ]);
            let client = forwarded_for(&lines);
            let page = |_: &u64| opt_out.opt_out(&lines, client, &edge) == Page::OptedOut;
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
}
