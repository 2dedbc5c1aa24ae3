//! Common code of all HTTP clients: settings, URLs without credentials, and bounded responses.

use std::{path::Path, time::Duration};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use reqwest::{Certificate, ClientBuilder, Response, redirect::Policy};
use runtime::reload::NamedFile;
use url::Url;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP client that follows no redirects and uses no proxy.
pub fn builder() -> ClientBuilder {
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

/// Adds the certificates of a PEM file, if there is one, to the system's authorities.
///
/// # Errors
/// When the file cannot be read or has no certificate.
pub fn trust(builder: ClientBuilder, ca_file: Option<&Path>) -> Result<ClientBuilder, String> {
    let Some(path) = ca_file else {
        return Ok(builder);
    };
    let file = NamedFile {
        flag: "ca_file",
        path: path.to_owned(),
    };
    match Certificate::from_pem_bundle(&file.read()?) {
        Ok(found) if !found.is_empty() => Ok(builder.tls_certs_merge(found)),
        Ok(_) => Err(file.error("contains no certificate")),
        Err(error) => Err(file.error(error)),
    }
}

/// Parses an absolute HTTP or HTTPS URL without credentials.
pub fn http_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let has_user = !url.username().is_empty() || url.password().is_some();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && !has_user).then_some(url)
}

/// Bytes with a permit for their memory.
pub struct Held<P> {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The permit, which is released with the bytes.
    pub permit: P,
}

impl<P> AsRef<[u8]> for Held<P> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The body of a response.
///
/// # Errors
/// When it is incomplete or larger than `bytes_max`.
pub async fn body(response: Response, bytes_max: usize) -> Result<Bytes> {
    let body = Limited::new(http::Response::from(response).into_body(), bytes_max);
    let body = body
        .collect()
        .await
        .map_err(|_| anyhow!("the response is incomplete or too large"));
    Ok(body?.to_bytes())
}
