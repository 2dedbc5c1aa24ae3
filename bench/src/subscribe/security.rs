//! TLS and token options, and connecting with them.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http::Uri;
use proto::client;
use runtime::{
    connect::{
        Connector, Network, Tcp,
        credentials::{self, Security},
    },
    settings::ConfigErrors,
};
use tonic::transport::{Channel, Endpoint};

/// TLS and token options. Files are read once at the start.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "TLS and tokens")]
pub struct SecurityArgs {
    /// PEM file with the certificate authorities of an https:// producer.
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<String>,
    /// PEM file with the client certificate.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// PEM file with the private key of the client certificate.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Expected name in the producer's certificate [default: host of its URL].
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// File whose first line is the token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<String>,
}

impl SecurityArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// All config errors.
    pub(super) fn load(&self, producer: &str) -> Result<Security> {
        let mut errors = ConfigErrors::default();
        let args = credentials::SecurityArgs {
            tls_ca: self.tls_ca.clone().unwrap_or_default(),
            tls_cert: self.tls_cert.clone().unwrap_or_default(),
            tls_key: self.tls_key.clone().unwrap_or_default(),
            tls_server_name: self.tls_server_name.clone().unwrap_or_default(),
            token_file: self.token_file.clone().unwrap_or_default(),
        };
        let security = Security::check(&mut errors, &args, producer.starts_with("https://"));
        errors.or(security).map_err(|errors| anyhow!("\n{errors}"))
    }
}

/// Connects to the first reachable address of `producer`, with the endpoint settings of `configure`.
///
/// # Errors
/// No address is reachable; returns the last error.
pub(super) async fn connect(
    producer: &str,
    security: &Security,
    configure: impl Fn(Endpoint) -> Endpoint,
) -> Result<(Connector, Channel)> {
    let uri: Uri = producer.parse()?;
    let https = uri.scheme_str() == Some("https");
    let host = uri.host().context("the producer's URL has no host")?;
    let host = host.trim_matches(['[', ']']);
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let port = uri.port_u16().unwrap_or(7676);
    let mut failed = anyhow!("{host} has no address");
    for address in network.lookup(host, port).await? {
        let connector = Connector::new(&network, address, (host, https), security)
            .map_err(|error| anyhow!(error))?;
        let endpoint = client::endpoint(format!("http://{address}"))?.origin(uri.clone());
        match connector.connect(&configure(endpoint)).await {
            Ok(channel) => return Ok((connector, channel)),
            Err(error) => match connector.failure() {
                Some(trouble) => bail!("{trouble}"),
                None => failed = error.into(),
            },
        }
    }
    Err(failed)
}
