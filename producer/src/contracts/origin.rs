//! Origins of web pages in settings.

use http::Uri;

/// Checks an origin as browsers send it.
///
/// # Errors
/// A description of the error.
pub fn check(origin: &str) -> Result<(), String> {
    let is_of_host =
        |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b':' | b'[' | b']');
    let is_valid = origin.parse::<Uri>().is_ok_and(|uri| {
        let host = uri.host().unwrap_or_default();
        let is = |(scheme, default)| match uri.port_u16() {
            Some(port) => port != default && format!("{scheme}://{host}:{port}") == origin,
            None => format!("{scheme}://{host}") == origin,
        };
        let is_origin = [("https", 443), ("http", 80)].into_iter().any(is);
        is_origin && !host.is_empty() && host.bytes().all(is_of_host)
    });
    match is_valid {
        true => Ok(()),
        false => Err(format!(
            "invalid origin `{origin}`: write https://HOST in lower case, without a path or the default port"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_has_a_scheme_and_a_host_only() {
        for (origin, is_valid) in [
            ("https://a.example", true),
            ("http://localhost:8080", true),
            ("https://[2001:db8::1]:8443", true),
            ("a.example", false),
            ("https://", false),
            ("https://a.example/", false),
            ("https://A.example", false),
            ("https://*.example", false),
            ("https://user@a.example", false),
            ("ftp://a.example", false),
            ("https://:443", false),
            ("https://a:443", false),
            ("http://a:80", false),
            ("https://a:b:c", false),
            ("https://a:", false),
            ("https://a:65536", false),
            ("https://a b", false),
            ("https://[::1", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(check(origin).is_ok(), is_valid, "{origin}");
        }
    }
}
