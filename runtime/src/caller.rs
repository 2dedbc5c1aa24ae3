//! Detects requests that web pages send to ports without authentication: foreign host names and cross-site requests.

use http::{HeaderMap, Uri, header};

/// Whether a port without tokens must reject the request: because a browser sends it for a page of another site, or to a host that is not
/// loopback.
pub fn is_foreign(headers: &HeaderMap, uri: &Uri) -> bool {
    is_cross_site(headers) || !has_loopback_host(headers, uri)
}

/// Whether a browser sends this request for a page of another site. That page cannot read the response, but the request would
/// cost CPU time.
pub(crate) fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

/// Whether a browser navigates to this URL as a top-level page.
pub(crate) fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name, value| headers.get(name).is_some_and(|it| it == value);
    is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

/// Whether the host of the request is a loopback address or name. True without a host, because browsers always send one.
pub fn has_loopback_host(headers: &HeaderMap, uri: &Uri) -> bool {
    // A request through a proxy has the host in the URI.
    let authority = match (headers.get(header::HOST), uri.authority()) {
        (None, None) => return true,
        (None, Some(authority)) => Some(authority.clone()),
        (Some(host), _) => host.to_str().ok().and_then(|host| host.parse().ok()),
    };
    let Some(authority) = authority.as_ref().map(http::uri::Authority::host) else {
        return false;
    };
    let address = authority.trim_start_matches('[').trim_end_matches(']');
    let name = address.trim_end_matches('.').to_ascii_lowercase();
    address
        .parse()
        .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        || name == "localhost"
        || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, is_loopback: bool) {
        let headers = [(header::HOST, host.parse().unwrap())];
        let headers = headers.into_iter().collect();
        let found = has_loopback_host(&headers, &Uri::from_static("/"));
        assert_eq!(found, is_loopback, "{host}");
    }

    #[test]
    fn loopback_host_is_distinguished_from_other_hosts() {
        for loopback in [
            "127.0.0.1:9090",
            "127.1.2.3",
            "[::1]:9090",
            "localhost:9090",
            "LOCALHOST",
            "node.localhost:1",
            "localhost.:9090",
        ] {
            check(loopback, true);
        }
        for other in [
            "rebound.example:9090",
            "127.0.0.1.example",
            "localhost.example",
            "notlocalhost",
            "10.0.0.1:9090",
            "[2001:db8::1]:9090",
            "",
            "a b",
        ] {
            check(other, false);
        }
        let (none, path) = (HeaderMap::new(), Uri::from_static("/"));
        assert!(has_loopback_host(&none, &path));
    }
}
