//! TLS of a port: server certificate, optional client authentication, and limits on handshakes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use metric_defs::MetricDef;
use parking_lot::Mutex;
use prometheus::IntCounterVec;
use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::SingleCertAndKey,
};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{HTTP1, HTTP2, pem, provider};
use crate::{
    listen::{ByteStream, WatchedStream, addresses::Addresses},
    metrics::Registry,
    reload::{NamedFile, Reloader, Source},
};

/// Maximum time of a handshake. Clients need less than one second, even on slow networks.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum concurrent handshakes of subscribers or API clients; a further one cancels the oldest. A handshake takes milliseconds, so
/// nodes of a large exchange that all reconnect at the same time stay below the limit.
pub const HANDSHAKES_MAX: usize = 256;

/// Divides the maximum number of concurrent handshakes to limit those of one address, so that it cannot block all others.
const PER_ADDRESS_DIVISOR: usize = 4;

/// The files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The server certificate, followed by its intermediate certificates.
    pub certificate: NamedFile,
    /// The private key.
    pub key: NamedFile,
    /// Authorities for client certificates; if set, clients must present one.
    pub client_authorities: Option<NamedFile>,
    /// Label of the certificate's expiry.
    pub kind: &'static str,
}

/// The TLS configuration built from [`Files`].
#[derive(Debug)]
pub struct Identity {
    config: Arc<ServerConfig>,
    expiries: Vec<(&'static str, i64)>,
}

impl Identity {
    #[cfg(test)]
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

impl Source for Files {
    type Value = Identity;
    const NAME: &'static str = "tls";

    fn files(&self) -> Vec<&NamedFile> {
        let files = [&self.certificate, &self.key];
        files.into_iter().chain(&self.client_authorities).collect()
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Identity, Vec<String>> {
        let mut errors = Vec::new();
        let provider = provider();
        let certificate = (&self.certificate, &contents[0][..]);
        let identity = pem::identity(&provider, certificate, (&self.key, &contents[1]));
        let identity = identity.map_err(|found| errors.extend(found));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3");
        let mut expiries = Vec::new();
        let builder = match (&self.client_authorities, contents.get(2)) {
            (Some(file), Some(contents)) => {
                let verifier = pem::authorities(file, contents).and_then(|(roots, expiry)| {
                    expiries.extend(expiry.map(|expiry| ("client_authority", expiry)));
                    WebPkiClientVerifier::builder_with_provider(roots, provider)
                        .build()
                        .map_err(|error| file.error(error))
                });
                verifier.map(|verifier| builder.with_client_cert_verifier(verifier))
            }
            _ => Ok(builder.with_no_client_auth()),
        };
        let builder = builder.map_err(|error| errors.push(error));
        let (Ok((identity, expiry)), Ok(builder)) = (identity, builder) else {
            return Err(errors);
        };
        expiries.extend(expiry.map(|expiry| (self.kind, expiry)));
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity)));
        config.alpn_protocols = vec![HTTP2.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Identity {
            config: Arc::new(config),
            expiries,
        })
    }

    fn expiries(identity: &Identity) -> Vec<(&'static str, i64)> {
        identity.expiries.clone()
    }
}

/// Performs the TLS handshakes of a port.
#[derive(Debug)]
pub struct Handshakes {
    files: Arc<Reloader<Files>>,
    active: ActiveHandshakes,
    addresses: Addresses,
    outcomes: IntCounterVec,
    concurrent_max: usize,
    /// ALPN names of the protocols that may follow the handshake.
    protocols: &'static [&'static [u8]],
}

impl Handshakes {
    /// Registers `<process>_<counter>{outcome}`.
    ///
    /// # Errors
    /// If a name is already registered.
    pub fn new(
        files: Arc<Reloader<Files>>,
        registry: &Registry,
        process: &str,
        counter: &'static str,
    ) -> prometheus::Result<Self> {
        let outcomes = MetricDef::counter(counter, "TLS handshakes by outcome.");
        let outcomes: IntCounterVec = registry.add(outcomes.by(&["outcome"]).of(process))?;
        for outcome in ["done", "failed", "timeout", "too_many"] {
            outcomes.with_label_values(&[outcome]);
        }
        Ok(Self {
            files,
            active: ActiveHandshakes::default(),
            addresses: Addresses::default(),
            outcomes,
            concurrent_max: HANDSHAKES_MAX,
            protocols: &[HTTP2],
        })
    }

    /// Handshakes of a port for HTTP/2 and HTTP/1.1.
    #[must_use]
    pub fn for_http(self) -> Self {
        Self {
            protocols: &[HTTP2, HTTP1],
            ..self
        }
    }

    /// Handshakes of an HTTP/1.1 port with the same files and counters.
    pub fn for_http_1(&self, concurrent_max: usize) -> Self {
        Self {
            files: Arc::clone(&self.files),
            active: ActiveHandshakes::default(),
            addresses: Addresses::default(),
            outcomes: self.outcomes.clone(),
            concurrent_max,
            protocols: &[HTTP1],
        }
    }

    fn config(&self) -> Arc<ServerConfig> {
        let mut config = Arc::clone(&self.files.current().config);
        if self.protocols != [HTTP2] {
            let names = self.protocols.iter().map(|name| name.to_vec());
            Arc::make_mut(&mut config).alpn_protocols = names.collect();
        }
        config
    }

    /// Performs the handshake with a client, using the current files. Counts the outcome; `None` if it failed, or if `stop` was
    /// cancelled first.
    pub async fn accept<S: ByteStream>(
        &self,
        stream: WatchedStream<S>,
        stop: &CancellationToken,
    ) -> Option<TlsStream<WatchedStream<S>>> {
        let accepting = stop.run_until_cancelled(self.try_accept(stream));
        let (outcome, stream) = accepting.await?;
        self.outcomes.with_label_values(&[outcome]).inc();
        stream.inspect(|stream| stream.get_ref().0.activity.request())
    }

    async fn try_accept<S: ByteStream>(
        &self,
        stream: WatchedStream<S>,
    ) -> (&'static str, Option<TlsStream<WatchedStream<S>>>) {
        let peer = stream.peer();
        let each_max = self.concurrent_max / PER_ADDRESS_DIVISOR;
        let Some(_permit) = self.addresses.acquire(each_max, peer) else {
            return ("too_many", None);
        };
        let handshake = self.active.begin(self.concurrent_max);
        let acceptor = TlsAcceptor::from(self.config());
        let accepting = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
        match handshake.cancel.run_until_cancelled(accepting).await {
            None => ("too_many", None),
            Some(Ok(Ok(stream))) => ("done", Some(stream)),
            Some(Ok(Err(error))) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                ("failed", None)
            }
            Some(Err(_)) => {
                tracing::debug!(%peer, "TLS handshake timed out");
                ("timeout", None)
            }
        }
    }
}

/// Handshakes in progress, oldest first. A new one cancels the oldest if there are too many.
#[derive(Debug, Default)]
struct ActiveHandshakes(Mutex<CancelTokens>);

#[derive(Debug, Default)]
struct CancelTokens {
    next_id: u64,
    by_id: BTreeMap<u64, CancellationToken>,
}

/// A handshake in progress, until it is dropped.
struct Handshake<'a> {
    active: &'a ActiveHandshakes,
    id: u64,
    cancel: CancellationToken,
}

impl ActiveHandshakes {
    fn begin(&self, concurrent_max: usize) -> Handshake<'_> {
        let mut tokens = self.0.lock();
        if tokens.by_id.len() >= concurrent_max
            && let Some((_, oldest)) = tokens.by_id.pop_first()
        {
            oldest.cancel();
        }
        let (id, cancel) = (tokens.next_id, CancellationToken::new());
        tokens.next_id += 1;
        tokens.by_id.insert(id, cancel.clone());
        Handshake {
            active: self,
            id,
            cancel,
        }
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.active.0.lock().by_id.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_handshake_cancels_the_oldest_when_full() {
        let active = ActiveHandshakes::default();
        let slow: Vec<_> = (0..3).map(|_| active.begin(3)).collect();
        let newest = active.begin(3);
        let cancelled = |handshake: &&Handshake<'_>| handshake.cancel.is_cancelled();
        assert_eq!(slow.iter().filter(cancelled).count(), 1);
        assert!(slow[0].cancel.is_cancelled() && !newest.cancel.is_cancelled());
        drop(slow);
        assert_eq!(active.0.lock().by_id.len(), 1);
        drop(newest);
        assert!(active.0.lock().by_id.is_empty());
    }
}
