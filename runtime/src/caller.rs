//! Who asks a port that asks nobody who they are: this machine, by its own names, or a page of another site.

use http::{HeaderMap, Uri, header};

/// Whether a browser says that it asks for a page of another site, which could not read the answer but would make the process
/// work for it.
#[must_use]
pub fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site != "same-origin" && site != "none")
}

/// Whether a browser says that it will show the answer as a page of its own.
pub(crate) fn is_navigation(headers: &HeaderMap) -> bool {
    let says = |name, value| headers.get(name).is_some_and(|it| it == value);
    says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document")
}

/// Whether the client means this machine, by a name that only this machine can have. A client that says no name is no
/// browser.
#[must_use]
pub fn has_loopback_host(headers: &HeaderMap, uri: &Uri) -> bool {
    // A proxy's client has it in the URI.
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
    fn check(host: &str, is_ours: bool) {
        let headers = [(header::HOST, host.parse().unwrap())];
        let headers = headers.into_iter().collect();
        let is_called = has_loopback_host(&headers, &Uri::from_static("/"));
        assert_eq!(is_called, is_ours, "{host}");
    }

    #[test]
    fn loopback_port_answers_only_to_names_that_nobody_else_can_have() {
        for ours in [
            "127.0.0.1:9090",
            "127.1.2.3",
            "[::1]:9090",
            "localhost:9090",
            "LOCALHOST",
            "node.localhost:1",
            "localhost.:9090",
        ] {
            check(ours, true);
        }
        for others in [
            "rebound.example:9090",
            "127.0.0.1.example",
            "localhost.example",
            "notlocalhost",
            "10.0.0.1:9090",
            "[2001:db8::1]:9090",
            "",
            "a b",
        ] {
            check(others, false);
        }
        let (none, path) = (HeaderMap::new(), Uri::from_static("/"));
        assert!(has_loopback_host(&none, &path));
    }
}
