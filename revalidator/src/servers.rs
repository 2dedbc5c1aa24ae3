//! Calls to the operator's nodes or producers. A call succeeds if one of these servers responds successfully.

use std::{path::Path, path::PathBuf, time::Duration};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use http::header;
use runtime::{reload::NamedFile, token::Tokens};
use serde::Deserialize;
use url::Url;

use crate::client::{body, builder, http_url, trust};

const TIMEOUT: Duration = Duration::from_secs(90);

/// Maximum bytes of a response.
const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// Servers as in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    urls: Vec<String>,
    token_file: Option<PathBuf>,
    /// PEM file with additional CA certificates.
    ca_file: Option<PathBuf>,
}

/// Servers with the same data and token.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Settings")]
pub struct Servers {
    urls: Vec<Url>,
    token_file: Option<PathBuf>,
    http: reqwest::Client,
}

/// The first token of a file.
///
/// # Errors
/// When the file cannot be read or has no token. The error contains no part of a token.
pub fn token(path: &Path) -> Result<String, String> {
    let file = NamedFile {
        flag: "token_file",
        path: path.to_owned(),
    };
    let tokens = Tokens::<()>::parse(&file.read()?).map_err(|error| file.error(error))?;
    Ok(tokens.first().to_owned())
}

impl TryFrom<Settings> for Servers {
    type Error = String;

    fn try_from(settings: Settings) -> Result<Self, String> {
        let urls = settings.urls.iter().map(|it| http_url(it));
        let urls: Option<Vec<_>> = urls.collect();
        let urls = urls.filter(|it| !it.is_empty());
        settings.token_file.as_deref().map(token).transpose()?;
        let http = trust(builder().timeout(TIMEOUT), settings.ca_file.as_deref())?.build();
        Ok(Self {
            urls: urls.ok_or("use at least one URL like http://node-1:9091")?,
            token_file: settings.token_file,
            http: http.map_err(|error| error.to_string())?,
        })
    }
}

impl Servers {
    /// Sends a GET, or a POST of rows, to one server after the other until one succeeds. `path` may have a query.
    ///
    /// # Errors
    /// The error of the last server.
    pub async fn call(&self, path: &str, rows: Option<String>) -> Result<Bytes> {
        let mut failed = anyhow!("no server is configured");
        for url in &self.urls {
            match self.call_one(url, path, rows.clone()).await {
                Ok(body) => return Ok(body),
                Err(error) => failed = error.context(url.authority().to_owned()),
            }
        }
        Err(failed)
    }

    async fn call_one(&self, url: &Url, path: &str, rows: Option<String>) -> Result<Bytes> {
        let url = url.join(path)?;
        let mut request = match rows {
            None => self.http.get(url),
            Some(rows) => self
                .http
                .post(url)
                .header(header::CONTENT_TYPE, "application/x-ndjson")
                .body(rows),
        };
        if let Some(file) = &self.token_file {
            request = request.bearer_auth(token(file).map_err(anyhow::Error::msg)?);
        }
        let sent = request.send().await;
        let response = sent.and_then(reqwest::Response::error_for_status);
        let response = response.map_err(reqwest::Error::without_url)?;
        body(response, RESPONSE_BYTES_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{origin::tests::tls, test_server::serve};

    #[tokio::test]
    async fn servers_with_certificates_of_a_private_authority_need_ca_file() {
        let (acceptor, file) = tls();
        let respond = |_: &str| "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".to_owned();
        let (address, _tasks) = serve(Some(acceptor), respond).await;
        let parse = |ca_file: &str| {
            let text = format!("urls = [\"https://{address}\"]\n{ca_file}");
            toml::from_str::<Servers>(&text)
        };
        let trusted = parse(&format!("ca_file = {:?}", file.path())).unwrap();
        assert_eq!(trusted.call("/v1", None).await.unwrap(), "abc");
        assert!(parse("").unwrap().call("/v1", None).await.is_err());
        let error = parse("ca_file = \"/none\"").unwrap_err().to_string();
        assert!(error.contains("ca_file: /none: "), "{error}");
    }
}
