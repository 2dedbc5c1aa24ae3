//! Conditional requests to origins.
//!
//! The client of the application restricts hosts and addresses. The size of each body and the total size of all
//! bodies are bounded.

use std::{error::Error, future::Future, iter::successors, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use runtime::limit_headers::LimitHeaders;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{
    apps::{App, Cookies, NoAllowedAddress},
    client::Held,
    messages::{Asset, VALIDATOR_BYTES_MAX},
    outcome::{Answer, Body, Response},
};

const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of a response, excluding the wait for memory.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Responds to requests for assets: over HTTP, or in a simulation.
pub trait Origin: Clone + Send + Sync + 'static {
    /// Requests an asset, with its validators if `is_conditional`.
    fn request(
        &self,
        app: &App,
        asset: &Asset,
        is_conditional: bool,
    ) -> impl Future<Output = Answer> + Send;
}

/// Origins on the network.
#[derive(Debug, Clone)]
pub struct HttpOrigin {
    /// Bytes for bodies that are not stored yet.
    memory: Arc<Semaphore>,
    /// Parallel requests, each of which has an open file.
    requests: Arc<Semaphore>,
}

impl Origin for HttpOrigin {
    async fn request(&self, app: &App, asset: &Asset, is_conditional: bool) -> Answer {
        let cookies = app.settings.cookies.as_ref();
        let url = cookies.map_or_else(|| asset.url.clone(), |it| it.url(&asset.key));
        let Some(url) = app.settings.allowed(&url) else {
            return Answer::Forbidden;
        };
        let request = app.client.get(url);
        let mut request = request.header(header::ACCEPT_ENCODING, "identity");
        if is_conditional {
            request = request.headers(validators(asset));
        }
        if let Some(token) = cookies.and_then(Cookies::token) {
            request = request.bearer_auth(token);
        }
        let _permit = self.requests.acquire().await;
        let began = Instant::now();
        match timeout(FIRST_BYTE_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => {
                let bytes_max = app.settings.max_body;
                Answer::Response(self.read(response, began.elapsed(), bytes_max).await)
            }
            Ok(Err(error)) => {
                let error = error.without_url();
                tracing::debug!(app = app.name, ?error, "request failed");
                let mut causes = successors(Some(&error as &dyn Error), |&it| it.source());
                match causes.any(|it| it.is::<NoAllowedAddress>()) {
                    true => Answer::Forbidden,
                    false => Answer::None,
                }
            }
            Err(_) => Answer::None,
        }
    }
}

impl HttpOrigin {
    /// Origins with these bounds on the bytes of bodies that are not stored yet, and on parallel requests.
    pub fn new(memory: usize, requests: usize) -> Self {
        let semaphore =
            |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        Self {
            memory: semaphore(memory),
            requests: semaphore(requests),
        }
    }

    async fn read(
        &self,
        response: reqwest::Response,
        time: Duration,
        bytes_max: usize,
    ) -> Response {
        let text = |name| header(&response, name);
        let status = response.status().as_u16();
        let mut read = Response {
            status,
            time,
            e_tag: text(header::ETAG).unwrap_or_default(),
            last_modified: text(header::LAST_MODIFIED).unwrap_or_default(),
            limits: LimitHeaders::of(response.headers()).into(),
            body: Body::Unread,
        };
        // Other bodies are not read; their connections are closed.
        if (200..300).contains(&status) {
            let left = TOTAL_TIMEOUT.saturating_sub(time);
            read.body = self.body(response, left, bytes_max).await;
        }
        read
    }

    async fn body(
        &self,
        mut response: reqwest::Response,
        time: Duration,
        bytes_max: usize,
    ) -> Body {
        let all = |name, is: &str| {
            let values = response.headers().get_all(name);
            values
                .iter()
                .all(|it| it.as_bytes().eq_ignore_ascii_case(is.as_bytes()))
        };
        let is_encoded = !all(header::CONTENT_ENCODING, "identity");
        // Other bodies end with their connection, so a truncated one cannot be detected.
        let has_transfer = response.headers().contains_key(header::TRANSFER_ENCODING);
        let is_chunked = has_transfer && all(header::TRANSFER_ENCODING, "chunked");
        let has_end = is_chunked || (response.content_length().is_some() && !has_transfer);
        let length = response.content_length().map(usize::try_from);
        let length = length.map_or(bytes_max, |it| it.unwrap_or(usize::MAX));
        if is_encoded || !has_end || length > bytes_max {
            return Body::Unusable;
        }
        let permits = u32::try_from(length).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.memory)
            .acquire_many_owned(permits)
            .await
            .ok();
        let mut bytes = Vec::with_capacity(length);
        let reading = async {
            while let Ok(chunk) = response.chunk().await {
                match chunk {
                    Some(chunk) if bytes.len() + chunk.len() > length => return Body::Unusable,
                    Some(chunk) => bytes.extend_from_slice(&chunk),
                    None => return Body::Complete(Bytes::from_owner(Held { bytes, permit })),
                }
            }
            Body::Cut
        };
        timeout(time, reading).await.unwrap_or(Body::Cut)
    }
}

fn header(response: &reqwest::Response, name: HeaderName) -> Option<String> {
    let value = response.headers().get(name)?;
    value.to_str().ok().map(ToOwned::to_owned)
}

/// Whether a request for an asset can be conditional.
pub fn has_validators(asset: &Asset) -> bool {
    !validators(asset).is_empty()
}

fn validators(asset: &Asset) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: HeaderName, text: &str| {
        if !text.is_empty()
            && text.len() <= VALIDATOR_BYTES_MAX
            && let Ok(value) = HeaderValue::from_str(text)
        {
            headers.insert(name, value);
        }
    };
    add(header::IF_NONE_MATCH, &asset.e_tag);
    add(header::IF_MODIFIED_SINCE, &asset.last_modified);
    headers
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{fs, net::SocketAddr, sync::Mutex};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::pki_types::PrivateKeyDer;
    use tempfile::NamedTempFile;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{apps::Apps, test_server::serve};

    fn app(address: SocketAddr, more: &str) -> Arc<App> {
        let text = format!(
            "[apps.a]\nkind = \"list\"\nhosts = [\"127.0.0.1\"]\nhttp_hosts = [\"127.0.0.1\"]\n\
             allow_networks = [\"127.0.0.0/8\"]\nmax_body = \"2KiB\"\n{more}"
        );
        assert!(address.ip().is_loopback());
        Apps::parse(&text).unwrap().get("a").unwrap()
    }

    async fn request(origin: &HttpOrigin, app: &App, url: String) -> Option<Response> {
        let asset = Asset {
            url,
            ..Asset::default()
        };
        match origin.request(app, &asset, false).await {
            Answer::Response(response) => Some(response),
            Answer::None => None,
            Answer::Forbidden => panic!("forbidden"),
        }
    }

    #[tokio::test]
    async fn only_complete_bodies_within_the_maximum_are_used() {
        let responses = [
            ("200 OK\r\nContent-Length: 3\r\n\r\nabc", "complete"),
            (
                "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                "complete",
            ),
            ("200 OK\r\nContent-Length: 3\r\n\r\nab", "cut"),
            (
                "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                "cut",
            ),
            ("200 OK\r\n\r\nabc", "unusable"),
            ("200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc", "unusable"),
            (
                "200 OK\r\nContent-Length: 3\r\nContent-Encoding: br\r\n\r\nabc",
                "unusable",
            ),
            ("200 OK\r\nContent-Length: 2049\r\n\r\nabc", "unusable"),
            (
                "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n801\r\nLONG\r\n0\r\n\r\n",
                "unusable",
            ),
            ("404 Not Found\r\nContent-Length: 3\r\n\r\nabc", "unread"),
        ];
        let respond = move |request: &str| {
            let index: usize = request[5..6].parse().unwrap();
            let text = responses[index].0.replace("LONG", &"x".repeat(2049));
            format!("HTTP/1.1 {text}")
        };
        let (address, _tasks) = serve(None, respond).await;
        let origin = HttpOrigin::new(8000, 8);
        let app = app(address, "");
        for (index, (text, expected)) in responses.iter().enumerate() {
            let url = format!("http://{address}/{index}");
            let response = request(&origin, &app, url).await.unwrap();
            let found = match response.body {
                Body::Complete(body) => {
                    assert_eq!(body, "abc");
                    // Its length, or the maximum.
                    assert_eq!(
                        origin.memory.available_permits(),
                        [7997, 8000 - 2048][index]
                    );
                    "complete"
                }
                Body::Cut => "cut",
                Body::Unusable => "unusable",
                Body::Unread => "unread",
            };
            assert_eq!(found, *expected, "{text}");
            assert_eq!(origin.memory.available_permits(), 8000, "{text}");
        }
    }

    #[tokio::test]
    async fn redirects_are_not_followed_and_conditions_are_sent_only_on_demand() {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let (address, _tasks) = serve(None, move |request| {
            record.lock().unwrap().push(request.to_ascii_lowercase());
            "HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n".to_owned()
        })
        .await;
        let origin = HttpOrigin::new(8000, 8);
        let asset = Asset {
            url: format!("http://{address}/one"),
            e_tag: "\"1\"".to_owned(),
            last_modified: "Sun, 06 Nov 1994 08:49:37 GMT".to_owned(),
            ..Asset::default()
        };
        for is_conditional in [false, true] {
            let answer = origin
                .request(&app(address, ""), &asset, is_conditional)
                .await;
            let is_redirect = |it: &Response| it.status == 302 && it.body == Body::Unread;
            assert!(
                matches!(&answer, Answer::Response(it) if is_redirect(it)),
                "{answer:?}"
            );
        }
        let requests = requests.lock().unwrap();
        assert_eq!(requests.len(), 2);
        for (request, is_conditional) in requests.iter().zip([false, true]) {
            assert!(request.starts_with("get /one "), "{request}");
            for condition in [
                "if-none-match: \"1\"",
                "if-modified-since: sun, 06 nov 1994",
            ] {
                assert_eq!(request.contains(condition), is_conditional, "{request}");
            }
        }
    }

    #[tokio::test]
    async fn name_of_a_private_address_is_forbidden_like_the_address() {
        let (address, _tasks) =
            serve(None, |_| "HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()).await;
        let origin = HttpOrigin::new(1, 16);
        for (networks, host, expected) in [
            ("", "localhost", Answer::Forbidden),
            ("", "127.0.0.1", Answer::Forbidden),
            ("\"10.0.0.0/8\"", "localhost", Answer::Forbidden),
            ("", "unknown.invalid", Answer::None),
        ] {
            let text = format!(
                "[apps.a]\nkind = \"list\"\nhosts = [{host:?}]\nhttp_hosts = [{host:?}]\nallow_networks = [{networks}]\n"
            );
            let app = Apps::parse(&text).unwrap().get("a").unwrap();
            let asset = Asset {
                url: format!("http://{host}:{}/", address.port()),
                ..Asset::default()
            };
            let answer = origin.request(&app, &asset, false).await;
            assert_eq!(answer, expected, "{host} {networks}");
        }
    }

    #[tokio::test]
    async fn request_without_a_body_needs_no_memory() {
        let (address, _tasks) = serve(None, |request| {
            let status = if request.starts_with("GET /body") {
                "200 OK"
            } else {
                "304 Not Modified"
            };
            format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
        })
        .await;
        let origin = HttpOrigin::new(1, 8);
        let held = origin.memory.acquire().await;
        let app = app(address, "");
        let response = request(&origin, &app, format!("http://{address}/")).await;
        assert_eq!(response.unwrap().status, 304);
        drop(held);
        let response = request(&origin, &app, format!("http://{address}/body")).await;
        assert_eq!(response.unwrap().body, Body::Complete(Bytes::new()));
    }

    /// A server's certificate for 127.0.0.1, and the file of its private authority.
    pub(crate) fn tls() -> (TlsAcceptor, NamedTempFile) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        drop(rustls::crypto::ring::default_provider().install_default());
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        let file = NamedTempFile::new().unwrap();
        fs::write(file.path(), authority).unwrap();
        (TlsAcceptor::from(Arc::new(config)), file)
    }

    #[tokio::test]
    async fn origin_with_a_certificate_of_a_private_authority_needs_ca_file() {
        let (acceptor, file) = tls();
        let respond = |_: &str| "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".to_owned();
        let (address, _tasks) = serve(Some(acceptor), respond).await;
        let origin = HttpOrigin::new(1 << 20, 8);
        let url = format!("https://{address}/");
        let ca_file = format!("ca_file = \"{}\"\n", file.path().display());
        let response = request(&origin, &app(address, &ca_file), url.clone()).await;
        assert_eq!(response.unwrap().body, Body::Complete("abc".into()));
        assert_eq!(request(&origin, &app(address, ""), url).await, None);
    }

    #[test]
    fn long_and_malformed_validators_are_not_sent() {
        let asset = |e_tag: &str| Asset {
            e_tag: e_tag.to_owned(),
            ..Asset::default()
        };
        assert!(has_validators(&asset("\"1\"")));
        for e_tag in ["", "a\r\nb: c", &"x".repeat(513)] {
            assert!(!has_validators(&asset(e_tag)), "{e_tag:?}");
        }
    }
}
