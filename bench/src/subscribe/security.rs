//! Connects to a producer, with TLS if its URL is https.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use http::Uri;
use proto::client;
use runtime::{
    connect::{
        Connector, Network, Tcp,
        credentials::{Security, SecurityArgs},
    },
    settings::ConfigErrors,
};
use tonic::transport::Channel;

/// Reads the files of `args`.
///
/// # Errors
/// All config errors.
pub(super) fn load(producer: &str, args: &SecurityArgs) -> Result<Security> {
    let mut errors = ConfigErrors::default();
    let security = Security::check(&mut errors, args, producer.starts_with("https://"));
    errors.or(security).map_err(|errors| anyhow!("\n{errors}"))
}

/// Connects to the first reachable address of `producer`.
///
/// # Errors
/// No address is reachable; returns the last error.
pub(super) async fn connect(producer: &str, security: &Security) -> Result<(Connector, Channel)> {
    let uri: Uri = producer.parse()?;
    let https = uri.scheme_str() == Some("https");
    let host = uri.host().context("the producer's URL has no host")?;
    let host = host.trim_matches(['[', ']']);
    let network: Arc<dyn Network> = Arc::new(Tcp);
    let port = uri.port_u16().unwrap_or(7676);
    let mut failed = anyhow!("{host} does not resolve to an address");
    for address in network.lookup(host, port).await? {
        let connector = Connector::new(&network, address, (host, https), security)
            .map_err(|error| anyhow!(error))?;
        let endpoint = client::endpoint(format!("http://{address}"))?.origin(uri.clone());
        match connector.connect(&endpoint).await {
            Ok(channel) => return Ok((connector, channel)),
            Err(error) => match connector.failure() {
                Some(trouble) => bail!("{trouble}"),
                None => failed = error.into(),
            },
        }
    }
    Err(failed)
}
