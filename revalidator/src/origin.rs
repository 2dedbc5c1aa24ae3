//! Conditional requests to origins.
//!
//! A request leaves only for a listed host, over HTTPS unless an exception is listed, and only to public addresses, which are
//! checked when connecting. No redirect is followed, and no proxy is used. Bodies are bounded singly and together.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::{
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use tokio::{
    net::lookup_host,
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout, timeout_at},
};
use url::{Host, Url};

use crate::{
    apps::{App, AppSettings, is_public},
    messages::{Asset, URL_BYTES_MAX, VALIDATOR_BYTES_MAX},
    outcome::{Answer, Body, Response},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);
const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Unit of the memory for bodies.
const KIB: usize = 1024;

/// Where assets are requested: over HTTP, or from a simulation.
pub trait Origin: Clone + Send + Sync + 'static {
    /// Requests an asset, with its validators if `is_conditional`.
    fn request(
        &self,
        app: &App,
        asset: &Asset,
        is_conditional: bool,
    ) -> impl Future<Output = Answer> + Send;
}

impl AppSettings {
    fn allows_address(&self, address: IpAddr) -> bool {
        is_public(address) || self.allow_networks.iter().any(|it| it.contains(&address))
    }

    /// The URL, if a request for it is allowed. Addresses of names are checked later, when connecting.
    fn allowed(&self, text: &str) -> Option<Url> {
        let url = Url::parse(text)
            .ok()
            .filter(|_| text.len() <= URL_BYTES_MAX)?;
        let host = url.host()?;
        let name = url.host_str()?;
        let is_listed = |hosts: &[String]| hosts.iter().any(|it| it.eq_ignore_ascii_case(name));
        let has_tls = match url.scheme() {
            "https" => true,
            "http" => is_listed(&self.http_hosts),
            _ => false,
        };
        let is_allowed_address = match host {
            Host::Domain(_) => true,
            Host::Ipv4(address) => self.allows_address(address.into()),
            Host::Ipv6(address) => self.allows_address(address.into()),
        };
        let has_user = !url.username().is_empty() || url.password().is_some();
        let is_allowed = has_tls && is_listed(&self.hosts) && is_allowed_address && !has_user;
        is_allowed.then_some(url)
    }
}

/// HTTP client of an application.
///
/// # Errors
/// When the certificates of the system cannot be loaded.
pub fn client(settings: &Arc<AppSettings>) -> reqwest::Result<reqwest::Client> {
    builder()
        .dns_resolver(Resolver(Arc::clone(settings)))
        .pool_max_idle_per_host(settings.concurrency.max)
        .build()
}

/// An HTTP client that follows no redirects and uses no proxy.
pub fn builder() -> reqwest::ClientBuilder {
    // A second call fails, which has no effect.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .http1_only()
        .no_proxy()
        .redirect(Policy::none())
        .referer(false)
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .user_agent("cookiesync-revalidator")
}

/// Resolves names to allowed addresses only.
struct Resolver(Arc<AppSettings>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let settings = Arc::clone(&self.0);
        Box::pin(async move {
            let found = lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found
                .filter(|address| settings.allows_address(address.ip()))
                .collect();
            if allowed.is_empty() {
                return Err(io::Error::other("the host has no allowed address").into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Memory for response bodies; clones share it.
#[derive(Debug, Clone)]
pub struct BodyMemory {
    free: Arc<Semaphore>,
    kib: usize,
}

impl BodyMemory {
    /// Memory of this size.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let kib = (bytes / KIB).clamp(1, Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(kib));
        Self { free, kib }
    }

    /// Waits for the memory of a body; `None` never occurs, because the semaphore is never closed.
    pub async fn reserve(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let kib = bytes.div_ceil(KIB).min(self.kib);
        self.free.acquire_many(u32::try_from(kib).ok()?).await.ok()
    }
}

/// Origins on the network.
#[derive(Debug, Clone, Copy)]
pub struct HttpOrigin;

impl Origin for HttpOrigin {
    async fn request(&self, app: &App, asset: &Asset, is_conditional: bool) -> Answer {
        let bytes_max = app.settings.max_body;
        let Some(url) = app.settings.allowed(&asset.url) else {
            return Answer::Forbidden;
        };
        let mut request = app
            .client
            .get(url)
            .header(header::ACCEPT_ENCODING, "identity");
        if is_conditional {
            request = request.headers(validators(asset));
        }
        let began = Instant::now();
        let end = began + TOTAL_TIMEOUT;
        match timeout(FIRST_BYTE_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => {
                let time = began.elapsed();
                Answer::Response(read(response, time, end, bytes_max).await)
            }
            Ok(Err(error)) => {
                let error = error.without_url();
                tracing::debug!(app = app.name, ?error, "request failed");
                Answer::None
            }
            Err(_) => Answer::None,
        }
    }
}

/// Whether a request for an asset can be conditional.
#[must_use]
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

async fn read(
    mut response: reqwest::Response,
    time: Duration,
    end: Instant,
    bytes_max: usize,
) -> Response {
    let status = response.status().as_u16();
    let text = |name: HeaderName| {
        let value = response.headers().get(name)?;
        value.to_str().ok().map(ToOwned::to_owned)
    };
    let is_identity = |it: String| it.is_empty() || it.eq_ignore_ascii_case("identity");
    let mut read = Response {
        status,
        time,
        e_tag: text(header::ETAG).unwrap_or_default(),
        last_modified: text(header::LAST_MODIFIED).unwrap_or_default(),
        retry_after: text(header::RETRY_AFTER),
        is_encoded: !text(header::CONTENT_ENCODING).is_none_or(is_identity),
        body: Body::Unread,
    };
    // Other bodies are not read; their connections are closed.
    if (200..300).contains(&status) && !read.is_encoded {
        let body = timeout_at(end, body(&mut response, bytes_max)).await;
        read.body = body.unwrap_or(Body::Cut);
    }
    read
}

async fn body(response: &mut reqwest::Response, bytes_max: usize) -> Body {
    if response
        .content_length()
        .is_some_and(|it| it > bytes_max as u64)
    {
        return Body::TooLarge;
    }
    let mut body = BytesMut::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > bytes_max => return Body::TooLarge,
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Body::Complete(body.freeze()),
            Err(_) => return Body::Cut,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn settings(allow_networks: &str) -> AppSettings {
        let text = format!(
            "kind = \"list\"\nhttp_hosts = [\"plain.example\"]\nallow_networks = [{allow_networks}]\n\
             hosts = [\"shop.example\", \"plain.example\", \"127.0.0.1\", \"10.0.0.1\", \"8.8.8.8\", \"[::1]\"]\n"
        );
        toml::from_str(&text).unwrap()
    }

    #[track_caller]
    fn check(urls: &[&str], expected: bool) {
        for url in urls {
            assert_eq!(
                settings("\"127.0.0.0/8\"").allowed(url).is_some(),
                expected,
                "{url}"
            );
        }
    }

    #[test]
    fn only_listed_hosts_are_requested() {
        check(
            &[
                "https://shop.example/a?b=c",
                "https://SHOP.example:8443/",
                "http://plain.example/",
            ],
            true,
        );
        check(
            &[
                "http://shop.example/",
                "https://other.example/",
                "https://shop.example.evil.example/",
                "ftp://shop.example/",
                "https://user@shop.example/",
                "https://:pw@shop.example/",
                "file:///etc/passwd",
                "shop.example",
                "",
                "//shop.example/",
                "https://other.example\\@shop.example/",
            ],
            false,
        );
        let long = format!("https://shop.example/{}", "a".repeat(URL_BYTES_MAX));
        check(&[&long], false);
    }

    #[test]
    fn literal_addresses_are_checked() {
        check(
            &[
                "https://127.0.0.1/",
                "https://0x7f.1/",
                "https://2130706433/",
                "https://8.8.8.8/",
            ],
            true,
        );
        check(
            &[
                "https://10.0.0.1/",
                "https://167772161/",
                "https://[::1]/",
                "https://[::ffff:10.0.0.1]/",
            ],
            false,
        );
    }

    #[tokio::test]
    async fn names_of_private_addresses_do_not_resolve() {
        let resolve = async |networks: &str| {
            let name: Name = "localhost".parse().unwrap();
            let found = Resolver(Arc::new(settings(networks))).resolve(name).await;
            found.is_ok()
        };
        assert!(resolve("\"127.0.0.0/8\", \"::1/128\"").await);
        assert!(!resolve("").await);
    }

    #[tokio::test]
    async fn bodies_wait_for_memory() {
        let memory = BodyMemory::new(2 << 10);
        let first = memory.reserve(5 << 10).await;
        assert!(memory.reserve(1).now_or_never().is_none());
        drop(first);
        assert!(memory.reserve(1).now_or_never().flatten().is_some());
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
