//! TLS towards a server: whom to trust and what to show, from PEM files.

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

/// The files of a client.
#[derive(Clone)]
pub(super) struct Tls {
    /// The authorities that may sign a server's certificate.
    pub(super) authorities: PathBuf,
    /// Its own certificate and key, for servers that want one.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Reads the files. An error begins with the key that names the file.
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
                    // The error may hold a piece of the key.
                    _ => file_error("tls_key", key, "has no private key inside"),
                })?;
                let what = "its key cannot be used, or is not that of tls_cert";
                let config = builder.with_client_auth_cert(chain, signing);
                config.map_err(|_| file_error("tls_key", key, what))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Shakes hands, within so long, with a server that must prove to be `host`.
    pub(super) async fn shake(
        &self,
        host: &str,
        stream: TcpStream,
        within: Duration,
    ) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let files = self.clone();
        let config = spawn_blocking(move || files.config()).await;
        let config = config.map_err(|panic| panic.to_string())??;
        let shaken = TlsConnector::from(Arc::new(config)).connect(name, stream);
        match timeout(within, shaken).await {
            Ok(shaken) => shaken.map_err(|error| explain(&error)),
            // A server without TLS waits for the end of what it takes for a command.
            Err(_) => Err(format!(
                "no answer to the handshake within {within:?}: is it spoken at this port?"
            )),
        }
    }
}

/// What an error of the handshake means for anyone who operates it.
fn explain(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidMessage(_)) => {
            "none is spoken at this port: redis:// instead of rediss://?".to_owned()
        }
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the connection was closed during the handshake: none is spoken at this port, or the server has no room"
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
        Ok(_) => Err(file_error(key, path, "has no certificate inside")),
        Err(pem::Error::Io(error)) => Err(file_error(key, path, error)),
        Err(_) => Err(file_error(key, path, "is not valid PEM")),
    }
}
