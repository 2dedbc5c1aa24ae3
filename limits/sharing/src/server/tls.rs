//! TLS client configuration from PEM files, and the handshake.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, Error, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
};
use tokio::{net::TcpStream, task::spawn_blocking, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// The PEM files of a TLS client.
#[derive(Clone)]
pub(super) struct Tls {
    /// Certificate authorities of the server.
    pub(super) authorities: PathBuf,
    /// Client certificate and key, if the server requires them.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files. Errors start with the configuration key of the file.
    pub(super) fn config(&self) -> Result<ClientConfig, String> {
        let path = &self.authorities;
        let mut roots = RootCertStore::empty();
        for certificate in certificates("tls_ca", path)? {
            let added = roots.add(certificate);
            added.map_err(|error| file_error("tls_ca", path, error))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("these algorithms serve TLS 1.2 and 1.3")
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates("tls_cert", certificate)?;
                let signing = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
                    pem::Error::Io(error) => file_error("tls_key", key, error),
                    // The error may contain part of the key.
                    _ => file_error("tls_key", key, "contains no valid private key"),
                })?;
                let what = "the key is not supported, or does not match tls_cert";
                let config = builder.with_client_auth_cert(chain, signing);
                config.map_err(|_| file_error("tls_key", key, what))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Performs the handshake within `within`. The server's certificate must be valid for `host`.
    pub(super) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
        within: Duration,
    ) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let files = self.clone();
        let config = spawn_blocking(move || files.config()).await;
        let config = config.map_err(|panic| panic.to_string())??;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
        match timeout(within, stream).await {
            Ok(stream) => stream.map_err(|error| explain(&error)),
            // A server without TLS parses the handshake as a command and waits for its end.
            Err(_) => Err(format!(
                "no response to the handshake within {within:?}: check that the port uses TLS"
            )),
        }
    }
}

/// Explains a handshake error to the operator.
fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidMessage(_)) => {
            "the port does not use TLS: use redis:// instead of rediss://".to_owned()
        }
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "connection closed during the handshake: the port does not use TLS, or the server has reached its maxclients"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

fn file_error(key: &str, path: &Path, what: impl std::fmt::Display) -> String {
    format!("{key}: {}: {what}", path.display())
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path);
    let read: Result<Vec<_>, pem::Error> = read.and_then(Iterator::collect);
    match read {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(file_error(key, path, "contains no certificate")),
        Err(pem::Error::Io(error)) => Err(file_error(key, path, error)),
        Err(_) => Err(file_error(key, path, "invalid PEM")),
    }
}
