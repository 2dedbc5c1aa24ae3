//! Connects streams to producers that want TLS, a certificate or a token.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http::Uri;
use proto::client;
use runtime::{
    connect::{
        Connector, Network, Tcp,
        credentials::{Flags, Security},
    },
    settings::ConfigErrors,
};
use tonic::transport::{Channel, Endpoint};

/// What the producer wants to see, and whom to trust; files are read once, at the start.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "TLS and tokens")]
pub struct SecurityArgs {
    /// PEM file with the authorities that may sign the certificate of an https:// producer.
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<String>,
    /// PEM file with a certificate to show to the producer.
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// PEM file with the private key of that certificate.
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Name that the producer's certificate must bear [default: the host of its URL].
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// File whose first line is the token that the producer wants.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<String>,
}

impl SecurityArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// All that is wrong with them.
    pub(super) fn load(&self, producer: &str) -> Result<Security> {
        let mut errors = ConfigErrors::default();
        let flags = Flags {
            authorities: self.tls_ca.as_deref().unwrap_or_default(),
            certificate: self.tls_cert.as_deref().unwrap_or_default(),
            key: self.tls_key.as_deref().unwrap_or_default(),
            server_name: self.tls_server_name.as_deref().unwrap_or_default(),
            token_file: self.token_file.as_deref().unwrap_or_default(),
        };
        let security = Security::check(&mut errors, flags, producer.starts_with("https://"));
        errors.or(security).map_err(|wrong| anyhow!("\n{wrong}"))
    }
}

/// Connects to the first address of `producer` that answers, with the windows that `announce` sets.
///
/// # Errors
/// When none does, with what the last one said.
pub(super) async fn connect(
    producer: &str,
    security: &Security,
    announce: impl Fn(Endpoint) -> Endpoint,
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
            .map_err(|why| anyhow!(why))?;
        let endpoint = client::endpoint(format!("http://{address}"))?.origin(uri.clone());
        match connector.connect(&announce(endpoint)).await {
            Ok(channel) => return Ok((connector, channel)),
            Err(error) => match connector.failure() {
                Some(trouble) => bail!("{trouble}"),
                None => failed = error.into(),
            },
        }
    }
    Err(failed)
}
