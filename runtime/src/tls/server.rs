//! TLS on a port: certificates, client certificates if an authority is named, and handshakes within limits.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use metric_defs::MetricDef;
use prometheus::IntCounterVec;
use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::SingleCertAndKey,
};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{HTTP2, pem, provider};
use crate::{
    listen::{ByteStream, addresses::Addresses},
    metrics::Registry,
    reload::{NamedFile, Reloader, Source},
};

/// Longest time a client may take for its handshake. Over any network it needs less than one second.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most handshakes at once; a further one ends the oldest. All nodes of a large exchange reconnecting at once
/// stay below it, since one handshake takes milliseconds.
pub const HANDSHAKES_MAX: usize = 256;

/// Most handshakes at once with one address, so that one alone cannot keep all others out.
pub const HANDSHAKES_PER_ADDRESS_MAX: usize = 64;

/// The files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Its certificate, followed by those that lead to an authority.
    pub certificate: NamedFile,
    /// The private key.
    pub key: NamedFile,
    /// The authorities that sign clients' certificates, which then are required.
    pub client_authorities: Option<NamedFile>,
}

/// What is made of [`Files`].
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
        let identity = identity.map_err(|wrong| errors.extend(wrong));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("these algorithms serve TLS 1.2 and 1.3");
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
        let builder = builder.map_err(|wrong| errors.push(wrong));
        let (Ok((identity, expiry)), Ok(builder)) = (identity, builder) else {
            return Err(errors);
        };
        expiries.extend(expiry.map(|expiry| ("certificate", expiry)));
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

/// Makes TLS connections of accepted ones.
#[derive(Debug)]
pub struct Handshakes {
    files: Arc<Reloader<Files>>,
    under_way: UnderWay,
    addresses: Addresses,
    outcomes: IntCounterVec,
}

impl Handshakes {
    /// Registers `<process>_tls_handshakes_total{outcome}`.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn new(
        files: Arc<Reloader<Files>>,
        registry: &Registry,
        process: &str,
    ) -> prometheus::Result<Self> {
        let outcomes = MetricDef::counter("tls_handshakes_total", "TLS handshakes by outcome.");
        let outcomes: IntCounterVec = registry.add(outcomes.by(&["outcome"]).of(process))?;
        for outcome in ["done", "failed", "timeout", "too_many"] {
            outcomes.with_label_values(&[outcome]);
        }
        Ok(Self {
            files,
            under_way: UnderWay::default(),
            addresses: Addresses::default(),
            outcomes,
        })
    }

    /// Shakes hands with a client, with the files in use now; `None` when that fails, which is counted.
    pub async fn shake<S: ByteStream>(&self, stream: S, peer: IpAddr) -> Option<TlsStream<S>> {
        let (outcome, shaken) = self.try_shake(stream, peer).await;
        self.outcomes.with_label_values(&[outcome]).inc();
        shaken
    }

    async fn try_shake<S: ByteStream>(
        &self,
        stream: S,
        peer: IpAddr,
    ) -> (&'static str, Option<TlsStream<S>>) {
        let Some(_place) = self.addresses.enter(HANDSHAKES_PER_ADDRESS_MAX, peer) else {
            return ("too_many", None);
        };
        let begun = self.under_way.begin();
        let acceptor = TlsAcceptor::from(Arc::clone(&self.files.current().config));
        let shaking = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
        match begun.end.run_until_cancelled(shaking).await {
            None => ("too_many", None),
            Some(Ok(Ok(stream))) => ("done", Some(stream)),
            Some(Ok(Err(error))) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                ("failed", None)
            }
            Some(Err(_)) => {
                tracing::debug!(%peer, "TLS handshake took too long");
                ("timeout", None)
            }
        }
    }
}

/// The handshakes under way, the oldest first: a slow one makes room for a new one.
#[derive(Debug, Default)]
struct UnderWay(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    count: u64,
    ends: BTreeMap<u64, CancellationToken>,
}

/// One of them, until it is dropped.
struct Handshake<'a> {
    under_way: &'a UnderWay,
    id: u64,
    end: CancellationToken,
}

impl UnderWay {
    fn begin(&self) -> Handshake<'_> {
        let mut begun = self.begun();
        if begun.ends.len() >= HANDSHAKES_MAX
            && let Some((_, oldest)) = begun.ends.pop_first()
        {
            oldest.cancel();
        }
        let (id, end) = (begun.count, CancellationToken::new());
        begun.count += 1;
        begun.ends.insert(id, end.clone());
        Handshake {
            under_way: self,
            id,
            end,
        }
    }

    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.under_way.begun().ends.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_handshakes_keep_no_newcomer_out() {
        let under_way = UnderWay::default();
        let slow: Vec<_> = (0..HANDSHAKES_MAX).map(|_| under_way.begin()).collect();
        let newcomer = under_way.begin();
        let ended = |handshake: &&Handshake<'_>| handshake.end.is_cancelled();
        assert_eq!(slow.iter().filter(ended).count(), 1);
        assert!(slow[0].end.is_cancelled() && !newcomer.end.is_cancelled());
        drop(slow);
        assert_eq!(under_way.begun().ends.len(), 1);
        drop(newcomer);
        assert!(under_way.begun().ends.is_empty());
    }
}
