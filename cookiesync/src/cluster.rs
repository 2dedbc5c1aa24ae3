//! The ports of a cluster: lists them from flags, the environment and a file, resolves their names, and asks all at the same time.

use std::{collections::BTreeSet, fs, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use futures_util::future::join_all;
use http_body_util::{BodyExt as _, Limited};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Certificate, Client, Method, StatusCode, Url, redirect::Policy};
use runtime::{reload::NamedFile, token::Tokens};
use serde_json::Value;
use tokio::{
    net::lookup_host,
    time::{Instant, timeout, timeout_at},
};

use crate::args::{ClusterArgs, Hosts};

/// Maximum size of a response: that of a producer with 8,192 nodes with long names.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Maximum length of a text in an error.
const ERROR_CHARS_MAX: usize = 300;

/// An address of a port, or why there is none.
pub(crate) struct Port {
    /// The role of its process, until it states it.
    pub(crate) role: &'static str,
    pub(crate) url: Url,
    pub(crate) address: Result<SocketAddr, String>,
}

/// All ports, and how to reach them.
pub(crate) struct Cluster {
    /// Admin ports.
    pub(crate) admin: Vec<Port>,
    /// API ports of the producers.
    pub(crate) api: Vec<Port>,
    pub(crate) prometheus: Vec<Port>,
    /// Maximum time of responses.
    pub(crate) timeout: Duration,
    token: Option<String>,
    authorities: Option<Vec<Certificate>>,
    plain: Client,
}

/// Sends requests to one address.
#[derive(Clone)]
pub(crate) struct Caller {
    client: Client,
    /// The URL without the path.
    base: String,
    /// Only the API gets it.
    pub(crate) token: Option<String>,
}

/// The status and the body of a response.
pub(crate) type Answer = (StatusCode, Value);

impl Port {
    /// How it is named in tables and messages.
    pub(crate) fn shown(&self) -> String {
        match &self.address {
            Ok(address) => address.to_string(),
            Err(_) => self.url.to_string(),
        }
    }
}

impl Cluster {
    /// Reads all settings, and resolves the names.
    pub(crate) async fn open(args: ClusterArgs) -> Result<Self> {
        let mut hosts = args.hosts;
        if let Some(path) = &args.cluster {
            let read = fs::read_to_string(path).map_err(anyhow::Error::from);
            let file = read.and_then(|text| Ok(toml::from_str(&text)?));
            hosts.fill(file.with_context(|| format!("--cluster: {path}"))?);
        }
        if hosts.producer.is_empty() && hosts.node.is_empty() {
            hosts.producer.push("http://127.0.0.1:9090".to_owned());
            hosts.node.push("http://127.0.0.1:9091".to_owned());
        }
        // A second call fails, which has no effect.
        drop(rustls::crypto::ring::default_provider().install_default());
        let file = |flag, path| {
            let file = NamedFile::from_flag(flag, path);
            let contents = file.map(|file| file.read()).transpose();
            contents.map_err(|error| anyhow!(error))
        };
        let token =
            file("--api-token-file", &hosts.api_token_file)?.map(|it| Tokens::<()>::parse(&it));
        let token = token
            .transpose()
            .map_err(|error| anyhow!("--api-token-file: {error}"))?;
        let authorities =
            file("--tls-ca", &hosts.tls_ca)?.map(|it| Certificate::from_pem_bundle(&it));
        let deadline = Instant::now() + args.timeout;
        let (producers, nodes, api, prometheus) = tokio::join!(
            resolve("producer", hosts.producer, deadline),
            resolve("consumer", hosts.node, deadline),
            resolve("api", hosts.api, deadline),
            resolve("prometheus", hosts.prometheus, deadline),
        );
        let mut admin = producers?;
        admin.extend(nodes?);
        Ok(Self {
            admin,
            api: api?,
            prometheus: prometheus?,
            timeout: args.timeout,
            token: token.map(|tokens| tokens.first().to_owned()),
            authorities: authorities.transpose().context("--tls-ca")?,
            // Without authorities, because it is not used for TLS.
            plain: builder().tls_certs_only([]).build()?,
        })
    }

    /// Asks all ports at the same time, with one deadline. Results are in the order of the ports.
    pub(crate) async fn ask<'a, T>(
        &self,
        ports: impl IntoIterator<Item = &'a Port>,
        ask: impl AsyncFn(&Caller) -> Result<T>,
    ) -> Vec<(&'a Port, Result<T>)> {
        let ask = &ask;
        let asking = ports.into_iter().map(|port| async move {
            let answer = async { ask(&self.caller(port)?).await };
            let late = |_| Err(anyhow!("no response in time"));
            (
                port,
                timeout(self.timeout, answer).await.unwrap_or_else(late),
            )
        });
        join_all(asking).await
    }

    /// Sends a request to the APIs of all producers.
    ///
    /// # Errors
    /// If there are no APIs.
    pub(crate) async fn ask_apis(
        &self,
        method: Method,
        path: &str,
        expected: &[StatusCode],
    ) -> Result<Vec<(&Port, Result<Answer>)>> {
        if self.api.is_empty() {
            bail!("--api: missing; set it to the API ports of all producers");
        }
        let call = async |caller: &Caller| caller.call(&method, path, "", expected).await;
        Ok(self.ask(&self.api, call).await)
    }

    fn caller(&self, port: &Port) -> Result<Caller> {
        let address = port.address.clone().map_err(|error| anyhow!(error))?;
        let mut caller = Caller {
            client: self.plain.clone(),
            base: format!("http://{address}"),
            token: self.token.clone().filter(|_| port.role == "api"),
        };
        if port.url.scheme() == "https" {
            let host = port.url.host_str().unwrap_or_default();
            let mut builder = builder().resolve(host, address);
            if let Some(authorities) = &self.authorities {
                builder = builder.tls_certs_only(authorities.clone());
            }
            caller.client = builder.build()?;
            caller.base = port.url.origin().ascii_serialization();
        }
        Ok(caller)
    }
}

impl Caller {
    /// Sends a request; returns the status and the body, as JSON or text.
    ///
    /// # Errors
    /// If there is no complete response, or its status is none of the `expected`.
    pub(crate) async fn call(
        &self,
        method: &Method,
        path: &str,
        body: &str,
        expected: &[StatusCode],
    ) -> Result<Answer> {
        let url = format!("{}{path}", self.base);
        let mut request = self
            .client
            .request(method.clone(), url)
            .body(body.to_owned());
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(reqwest::Error::without_url)?;
        let (status, body) = (
            response.status(),
            http::Response::from(response).into_body(),
        );
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
        let body = body
            .map_err(|error| anyhow!("incomplete response: {error}"))?
            .to_bytes();
        let text = |_| String::from_utf8_lossy(&body).trim().into();
        let body: Value = serde_json::from_slice(&body).unwrap_or_else(text);
        if expected.contains(&status) {
            return Ok((status, body));
        }
        let detail = body.get("detail").or(body.get("error")).unwrap_or(&body);
        let detail = detail.as_str().map_or(detail.to_string(), str::to_owned);
        let detail: String = detail.chars().take(ERROR_CHARS_MAX).collect();
        bail!("status {}: {detail}", status.as_u16())
    }

    /// The body of a successful response to a GET.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        Ok(self
            .call(&Method::GET, path, "", &[StatusCode::OK])
            .await?
            .1)
    }
}

/// A part of a path.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn builder() -> reqwest::ClientBuilder {
    let builder = Client::builder().http1_only().no_proxy();
    builder
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
}

impl Hosts {
    /// Takes what is not set from a file.
    fn fill(&mut self, file: Self) {
        let lists = [
            &mut self.producer,
            &mut self.node,
            &mut self.api,
            &mut self.prometheus,
        ];
        for (own, other) in
            lists
                .into_iter()
                .zip([file.producer, file.node, file.api, file.prometheus])
        {
            if own.is_empty() {
                *own = other;
            }
        }
        for (own, other) in [
            (&mut self.api_token_file, file.api_token_file),
            (&mut self.tls_ca, file.tls_ca),
        ] {
            if own.is_empty() {
                *own = other;
            }
        }
    }
}

/// Resolves names, at the same time. Each address is one port.
async fn resolve(role: &'static str, urls: Vec<String>, deadline: Instant) -> Result<Vec<Port>> {
    let lookups = urls.iter().map(|text| async move {
        let url = Url::parse(text.trim()).ok();
        let url = url.filter(|it| it.has_host() && matches!(it.scheme(), "http" | "https"));
        let url =
            url.with_context(|| format!("invalid URL {text:?}; expected http://HOST:PORT"))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = url.port_or_known_default().unwrap_or(0);
        let mut addresses = Vec::new();
        match timeout_at(deadline, lookup_host((host, port))).await {
            Ok(Ok(found)) => addresses.extend(found.map(Ok)),
            Ok(Err(error)) => addresses.push(Err(format!("the name does not resolve: {error}"))),
            Err(_) => addresses.push(Err("the name is not resolved in time".to_owned())),
        }
        anyhow::Ok((url, addresses))
    });
    let (mut seen, mut ports) = (BTreeSet::new(), Vec::new());
    for found in join_all(lookups).await {
        let (url, addresses) = found?;
        for address in addresses {
            let is_new = address
                .as_ref()
                .is_ok_and(|it: &SocketAddr| seen.insert(*it));
            if is_new || address.is_err() {
                let url = url.clone();
                ports.push(Port { role, url, address });
            }
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_address_of_a_name_is_one_port() {
        let urls = [
            "http://localhost:9",
            "http://127.0.0.1:9",
            "http://no.such.name.invalid:9",
        ];
        let urls = urls.map(str::to_owned).to_vec();
        let deadline = Instant::now() + Duration::from_secs(60);
        let ports = resolve("node", urls, deadline).await.unwrap();
        let is_v4 = |it: &&Port| it.shown() == "127.0.0.1:9";
        assert_eq!(ports.iter().filter(is_v4).count(), 1);
        assert!(ports.last().unwrap().address.is_err());
        let invalid = resolve("node", vec!["node-1:9091".to_owned()], deadline).await;
        assert!(invalid.is_err());
    }

    #[test]
    fn flags_have_priority_over_the_file() {
        let mut hosts: Hosts = toml::from_str("node = ['a']\ntls_ca = 'x'").unwrap();
        hosts.fill(toml::from_str("node = ['b']\napi = ['c']\ntls_ca = 'y'").unwrap());
        assert_eq!(
            (hosts.node, hosts.api),
            (vec!["a".to_owned()], vec!["c".to_owned()])
        );
        assert_eq!(hosts.tls_ca, "x");
        assert!(toml::from_str::<Hosts>("nodes = ['b']").is_err());
    }
}
