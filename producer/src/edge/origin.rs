//! Origins of web pages, as browsers state them in the header `Origin`.

use httparse::Header;

use super::{head, opt_out::Page};

/// Checks that a page of this origin sent the request, as far as a browser sent it. `public` are the origins of this port at
/// its proxies.
///
/// A browser always knows the answer, whatever a proxy did to `Host`, and states it in `Sec-Fetch-Site`. Only `same-origin`
/// permits the request: for `none` (from the address bar, or a restored tab) the user did not press the button of the page.
/// Browsers before 2023 and clients without encryption do not send this header; then the origin must match.
pub(super) fn check_same(headers: &[Header<'_>], public: &[String]) -> Result<(), Page> {
    let mut sites = head::values(headers, "sec-fetch-site").peekable();
    if sites.peek().is_some() {
        let is_same = sites.all(|site| site == b"same-origin");
        return is_same.then_some(()).ok_or(Page::ForeignSite);
    }
    // Of several headers, the proxy may have checked another one.
    let value = |name| {
        let mut values = head::values(headers, name);
        values.next().filter(|_| values.next().is_none())
    };
    let is_same = |origin: &[u8]| {
        let is_public = public.iter().any(|it| it.as_bytes() == origin);
        is_public || value("host").is_some_and(|host| is_of_host(origin, host))
    };
    match value("origin").is_some_and(is_same) {
        true => Ok(()),
        false => Err(Page::ForeignOrigin),
    }
}

/// Whether a browser may send this origin for a page of this host, over either scheme: a proxy may have ended TLS.
fn is_of_host(origin: &[u8], host: &[u8]) -> bool {
    [("https://", ":443"), ("http://", ":80")]
        .iter()
        .any(|(scheme, port)| {
            let host = host.strip_suffix(port.as_bytes()).unwrap_or(host);
            let of_host = origin.strip_prefix(scheme.as_bytes());
            !host.is_empty() && of_host.is_some_and(|it| it.eq_ignore_ascii_case(host))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_request(headers: &[(&str, &str)], expected: Result<(), Page>) {
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
            check_request(&sites.map(site), Err(Page::ForeignSite));
        }
        // An attacker on the network can serve the host over HTTP.
        let of_host = [("Host", "sync.example"), ("Origin", "http://sync.example")];
        for other in ["cross-site", "same-site", "none", "", "Same-Origin"] {
            check_request(
                &[of_host[0], of_host[1], site(other)],
                Err(Page::ForeignSite),
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
            ("sync.example:8080", "https://sync.example:8080"),
            ("[2001:db8::443]:443", "https://[2001:db8::443]"),
            ("backend", "https://sync.example:8443"),
            ("backend", "http://plain.example"),
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
            ("sync.example:443", "https://sync.example:443"),
            ("backend", "https://sync.example"),
            ("backend", "https://plain.example"),
        ] {
            check_request(
                &[("Host", host), ("Origin", origin)],
                Err(Page::ForeignOrigin),
            );
        }
        let twice = [("Host", "sync.example"), ("Host", "evil.example")];
        let origin = ("Origin", "https://evil.example");
        check_request(&[twice[0], twice[1], origin], Err(Page::ForeignOrigin));
        check_request(&[twice[1], origin, origin], Err(Page::ForeignOrigin));
        check_request(&[("Host", "sync.example")], Err(Page::ForeignOrigin));
        check_request(
            &[("Origin", "https://sync.example")],
            Err(Page::ForeignOrigin),
        );
    }
}
