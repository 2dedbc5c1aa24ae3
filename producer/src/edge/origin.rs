//! Origins of web pages, as browsers state them in the header `Origin`.

use httparse::Header;
use runtime::http1::head;

/// Why a request does not count as sent by a page of this origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForeignOrigin {
    /// `Sec-Fetch-Site` is not `same-origin`.
    Site,
    /// `Origin` names neither the host in `Host` nor a public origin.
    Origin,
}

/// Checks that a page of this origin sent the request, as far as a browser sent it. `public` are the origins of this port at
/// its proxies.
///
/// A browser always knows the answer, whatever a proxy did to `Host`, and states it in `Sec-Fetch-Site`. Only `same-origin`
/// permits the request: for `none` (from the address bar, or a restored tab) the user did not press the button of the page.
/// Browsers before 2023 and clients without encryption do not send this header; then the origin must match.
pub(super) fn check_same(headers: &[Header<'_>], public: &[String]) -> Result<(), ForeignOrigin> {
    let mut sites = head::values(headers, "sec-fetch-site").peekable();
    if sites.peek().is_some() {
        let is_same = sites.all(|site| site == b"same-origin");
        return is_same.then_some(()).ok_or(ForeignOrigin::Site);
    }
    // Of several headers, the proxy may have checked another one.
    let value = |name| {
        let mut values = head::values(headers, name);
        values.next().filter(|_| values.next().is_none())
    };
    // A proxy may have ended TLS, so the scheme of this port is not known.
    let origin = value("origin").and_then(Origin::parse);
    let is_same = |origin: Origin<'_>| {
        let host = value("host").map(|host| without_port(host, origin.port));
        let is_host = host.is_some_and(|host| host.eq_ignore_ascii_case(origin.host));
        is_host
            || public
                .iter()
                .any(|it| Origin::parse(it.as_bytes()).is_some_and(|it| it.is(origin)))
    };
    match origin.is_some_and(is_same) {
        true => Ok(()),
        false => Err(ForeignOrigin::Origin),
    }
}

/// The parts of an origin.
#[derive(Clone, Copy)]
struct Origin<'a> {
    /// The default port of its scheme, with a colon.
    port: &'static [u8],
    /// The host, with a port other than the default one.
    host: &'a [u8],
}

impl<'a> Origin<'a> {
    /// `None` for `null` and anything else that is not a URL.
    fn parse(text: &'a [u8]) -> Option<Self> {
        let after = |scheme: &[u8]| {
            let (start, rest) = text.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        };
        let (port, authority) = match (after(b"https://"), after(b"http://")) {
            (Some(authority), _) => (&b":443"[..], authority),
            (None, authority) => (&b":80"[..], authority?),
        };
        let host = without_port(authority, port);
        (!host.is_empty()).then_some(Self { port, host })
    }

    fn is(self, other: Self) -> bool {
        self.port == other.port && self.host.eq_ignore_ascii_case(other.host)
    }
}

fn without_port<'a>(authority: &'a [u8], port: &[u8]) -> &'a [u8] {
    authority.strip_suffix(port).unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_request(headers: &[(&str, &str)], expected: Result<(), ForeignOrigin>) {
        let headers: Vec<_> = headers
            .iter()
            .map(|&(name, value)| Header {
                name,
                value: value.as_bytes(),
            })
            .collect();
        let public = [
            "https://sync.example:8443".to_owned(),
            "http://plain.example".to_owned(),
        ];
        assert_eq!(check_same(&headers, &public), expected, "{headers:?}");
    }

    #[test]
    fn browser_states_whether_the_page_has_the_same_origin() {
        let site = |site| ("sec-fetch-site", site);
        let rewritten = ("Host", "backend:8080");
        let origin = ("Origin", "https://sync.example");
        check_request(&[site("same-origin"), rewritten, origin], Ok(()));
        check_request(&[site("same-origin")], Ok(()));
        for sites in [["same-origin", "cross-site"], ["cross-site", "same-origin"]] {
            check_request(&sites.map(site), Err(ForeignOrigin::Site));
        }
        // An attacker on the network can serve the host over HTTP.
        let of_host = [("Host", "sync.example"), ("Origin", "http://sync.example")];
        for other in ["cross-site", "same-site", "none", "", "Same-Origin"] {
            check_request(
                &[of_host[0], of_host[1], site(other)],
                Err(ForeignOrigin::Site),
            );
        }
    }

    #[test]
    fn without_that_statement_the_origin_must_be_that_of_the_host_or_a_public_one() {
        for (host, origin) in [
            ("sync.example", "https://sync.example"),
            ("sync.example", "http://sync.example"),
            ("SYNC.example", "https://sync.example"),
            ("sync.example:443", "https://sync.example"),
            ("sync.example:80", "http://sync.example"),
            ("sync.example", "HTTPS://sync.example:443"),
            ("sync.example:8080", "https://sync.example:8080"),
            ("[2001:db8::443]:443", "https://[2001:db8::443]"),
            ("backend", "https://sync.example:8443"),
            ("backend", "https://SYNC.EXAMPLE:8443"),
            ("backend", "http://plain.example:80"),
            ("", "http://plain.example"),
        ] {
            check_request(&[("Host", host), ("Origin", origin)], Ok(()));
        }
        for (host, origin) in [
            ("sync.example", "null"),
            ("null", "null"),
            ("sync.example", ""),
            ("", "https://"),
            ("", ""),
            ("sync.example", "sync.example"),
            ("sync.example", "https://evil.example"),
            ("sync.example", "https://sync.example.evil.example"),
            ("sync.example", "https://sync.example:8080"),
            ("sync.example:80", "https://sync.example"),
            ("sync.example", "ftp://sync.example"),
            ("backend", "https://sync.example"),
            ("backend", "https://plain.example"),
        ] {
            check_request(
                &[("Host", host), ("Origin", origin)],
                Err(ForeignOrigin::Origin),
            );
        }
        let twice = [("Host", "sync.example"), ("Host", "evil.example")];
        let origin = ("Origin", "https://evil.example");
        check_request(&[twice[0], twice[1], origin], Err(ForeignOrigin::Origin));
        check_request(&[twice[1], origin, origin], Err(ForeignOrigin::Origin));
        check_request(&[("Host", "sync.example")], Err(ForeignOrigin::Origin));
        check_request(
            &[("Origin", "https://sync.example")],
            Err(ForeignOrigin::Origin),
        );
    }
}
