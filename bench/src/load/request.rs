//! Encoding of requests: a template of fixed bytes with one cookie.

use anyhow::{Context, Result, bail};
use http::Uri;

use crate::traffic::SyntheticCookie;

/// Fixed bytes of a request, and its address.
#[derive(Debug, Clone)]
pub(super) struct Template {
    host: String,
    port: u16,
    before_dsp_id: Vec<u8>,
    before_user_id: Vec<u8>,
}

impl Template {
    /// The template of requests to `url`.
    ///
    /// # Errors
    /// `url` is not `http://` with a host, or contains credentials.
    pub(super) fn new(url: &Uri) -> Result<Self> {
        if url.scheme_str() != Some("http") {
            bail!("{url} is not an http:// URL");
        }
        let authority = url
            .authority()
            .with_context(|| format!("{url} has no host"))?;
        if authority.as_str().contains('@') {
            let host = authority.host();
            bail!("the URL of {host} contains credentials, which an edge does not support");
        }
        let path = match url.path_and_query() {
            Some(path) if path.query().is_some() => format!("{path}&"),
            _ => format!("{}?", url.path()),
        };
        let host = authority.host();
        Ok(Self {
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: authority.port_u16().unwrap_or(80),
            before_dsp_id: format!("GET {path}d=").into_bytes(),
            before_user_id: format!(" HTTP/1.1\r\nHost: {authority}\r\nCookie: uid=").into_bytes(),
        })
    }

    /// Host and port for the resolver.
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Appends the request for `cookie`.
    #[inline]
    pub(super) fn put(&self, buffer: &mut Vec<u8>, cookie: &SyntheticCookie) {
        buffer.extend_from_slice(&self.before_dsp_id);
        put_decimal(buffer, cookie.dsp_id());
        buffer.extend_from_slice(b"&b=");
        buffer.extend_from_slice(cookie.buyer_uid_bytes());
        buffer.extend_from_slice(&self.before_user_id);
        buffer.extend_from_slice(cookie.user_id_bytes());
        buffer.extend_from_slice(b"\r\n\r\n");
    }
}

/// Appends a decimal number; fast below 100, as most DSP ids are.
#[inline]
fn put_decimal(buffer: &mut Vec<u8>, number: u32) {
    if number >= 100 {
        buffer.extend_from_slice(number.to_string().as_bytes());
        return;
    }
    let [tens, ones] = [number / 10, number % 10].map(|digit| b'0' + digit.to_le_bytes()[0]);
    if number >= 10 {
        buffer.push(tens);
    }
    buffer.push(ones);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Traffic;

    #[track_caller]
    fn check(url: &str, start: &str, host: (&str, u16)) {
        let template = Template::new(&url.parse().unwrap()).unwrap();
        assert_eq!(template.host_and_port(), host);
        let cookie = Traffic::new(1, None).cookie(0, 0);
        let mut request = Vec::new();
        template.put(&mut request, &cookie);
        let authority = url.trim_start_matches("http://").split(['/', '?']).next();
        let expected = format!(
            "GET {start}d={}&b={} HTTP/1.1\r\nHost: {}\r\nCookie: uid={}\r\n\r\n",
            cookie.dsp_id(),
            cookie.buyer_uid(),
            authority.unwrap(),
            cookie.user_id()
        );
        assert_eq!(String::from_utf8(request).unwrap(), expected);
    }

    #[test]
    fn numbers_are_written_in_decimal() {
        for number in [0, 7, 10, 42, 99, 100, 12_345, u32::MAX] {
            let mut buffer = Vec::new();
            put_decimal(&mut buffer, number);
            assert_eq!(buffer, number.to_string().as_bytes());
        }
    }

    #[test]
    fn request_has_cookie_and_address() {
        check("http://127.0.0.1:8080/", "/?", ("127.0.0.1", 8080));
        check("http://example.org", "/?", ("example.org", 80));
        check("http://[::1]:81/sync", "/sync?", ("::1", 81));
        check("http://a:1/sync?x=1", "/sync?x=1&", ("a", 1));
    }

    #[test]
    fn error_of_an_invalid_url_omits_its_credentials() {
        for url in ["https://a/", "/path", "a:1", "http://me:secret@a:1/"] {
            let error = Template::new(&url.parse().unwrap()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
