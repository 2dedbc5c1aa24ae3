//! Encodes requests: inserts the values of each request into a template of fixed bytes.

use anyhow::{Context, Result, bail};
use http::Uri;

use crate::traffic::SyntheticCookie;

/// Name of the HTTP cookie, the end of [`Template::before_user_id`].
const USER: &[u8] = b"Cookie: uid=";

/// The body of a request for a sync plan, as Prebid.js sends it.
const PLAN_BODY: &str = r#"{"uuid":"5bd0e8e2-2a4b-4ac3-9f5e-0c2b8d1c6f11","bidders":[],"limit":5,"coopSync":true,"gdpr":0,"gdpr_consent":"CQraFkAQraFkAAfAHAENB4FgAP_gAAAAAAAAIls_ifjtFzsvqSZsT2QVHpt7qOaRydl1SJk6rfvVd9l79F8tp6I7_lT9utkzfTbrKv0-d49KPXf4P23Ju2v_d2Q3eyn7KNVc1KOyTIcB4q_f87-d2toS6E_KX77ebM138t1cn4aw6BnWvzg"}"#;

/// Values of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) dsp_id: u32,
    pub(super) buyer_uid: &'a [u8],
    /// End of the query.
    pub(super) more: &'a [u8],
    /// `None` omits the HTTP cookie.
    pub(super) user_id: Option<&'a [u8]>,
}

impl<'a> From<&'a SyntheticCookie> for Parts<'a> {
    #[inline]
    fn from(cookie: &'a SyntheticCookie) -> Self {
        Self {
            dsp_id: cookie.dsp_id(),
            buyer_uid: cookie.buyer_uid_bytes(),
            more: b"",
            user_id: Some(cookie.user_id_bytes()),
        }
    }
}

/// Fixed bytes of a request, and its address.
#[derive(Debug, Clone)]
pub(super) struct Template {
    host: String,
    port: u16,
    before_dsp_id: Vec<u8>,
    before_user_id: Vec<u8>,
    /// Of a request for a sync plan, with the name of the HTTP cookie.
    plan_before_user_id: Vec<u8>,
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
            plan_before_user_id: format!(
                "POST /cookie_sync HTTP/1.1\r\nHost: {authority}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nCookie: uid=",
                PLAN_BODY.len()
            )
            .into_bytes(),
        })
    }

    /// Host and port for the resolver.
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// Appends a request for a sync plan for this user.
    pub(super) fn put_plan(&self, buffer: &mut Vec<u8>, user_id: &[u8]) {
        for part in [
            &self.plan_before_user_id,
            user_id,
            b"\r\n\r\n",
            PLAN_BODY.as_bytes(),
        ] {
            buffer.extend_from_slice(part);
        }
    }

    /// Appends the request with these values.
    #[inline]
    pub(super) fn put(&self, buffer: &mut Vec<u8>, parts: &Parts<'_>) {
        buffer.extend_from_slice(&self.before_dsp_id);
        put_decimal(buffer, parts.dsp_id);
        buffer.extend_from_slice(b"&b=");
        buffer.extend_from_slice(parts.buyer_uid);
        buffer.extend_from_slice(parts.more);
        if let Some(user_id) = parts.user_id {
            buffer.extend_from_slice(&self.before_user_id);
            buffer.extend_from_slice(user_id);
            buffer.extend_from_slice(b"\r\n\r\n");
        } else {
            let end = self.before_user_id.len() - USER.len();
            buffer.extend_from_slice(&self.before_user_id[..end]);
            buffer.extend_from_slice(b"\r\n");
        }
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
        template.put(&mut request, &Parts::from(&cookie));
        let authority = url.trim_start_matches("http://").split(['/', '?']).next();
        let expected = format!(
            "GET {start}d={}&b={} HTTP/1.1\r\nHost: {}\r\nCookie: uid={}\r\n\r\n",
            cookie.dsp_id(),
            cookie.buyer_uid(),
            authority.unwrap(),
            cookie.user_id()
        );
        assert_eq!(String::from_utf8(request).unwrap(), expected);
        let mut request = Vec::new();
        let without_user = Parts {
            more: b"&gdpr=1",
            user_id: None,
            ..Parts::from(&cookie)
        };
        template.put(&mut request, &without_user);
        let expected = expected.replace(" HTTP", "&gdpr=1 HTTP");
        let cookie_line = format!("Cookie: uid={}\r\n", cookie.user_id());
        let expected = expected.replace(&cookie_line, "");
        assert_eq!(String::from_utf8(request).unwrap(), expected);
    }

    #[test]
    fn request_for_a_plan_has_a_body_with_its_length() {
        let template = Template::new(&"http://a:1/sync".parse().unwrap()).unwrap();
        let mut request = Vec::new();
        template.put_plan(&mut request, b"u");
        let text = String::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("POST /cookie_sync HTTP/1.1\r\nHost: a:1\r\n"),
            "{head}"
        );
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
        assert!(head.ends_with("\r\nCookie: uid=u"), "{head}");
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
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
