//! TLS of a client: trusted authorities, client certificate, and error messages for the operator.

use std::{io, sync::Arc};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, client::Resumption,
    pki_types::ServerName, sign::SingleCertAndKey,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{HTTP2, pem, provider};
use crate::{
    listen::ByteStream,
    reload::{NamedFile, Source},
};

/// The files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// Trusted authorities for producers' certificates.
    pub authorities: NamedFile,
    /// Client certificate and key, for producers that require one.
    pub identity: Option<(NamedFile, NamedFile)>,
}

/// The TLS configuration built from [`Files`].
#[derive(Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    expiries: Vec<(&'static str, i64)>,
}

impl Source for Files {
    type Value = Trust;
    const NAME: &'static str = "tls";

    fn files(&self) -> Vec<&NamedFile> {
        let identity = self.identity.iter();
        let identity = identity.flat_map(|(certificate, key)| [certificate, key]);
        [&self.authorities].into_iter().chain(identity).collect()
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Trust, Vec<String>> {
        let provider = provider();
        let mut errors = Vec::new();
        let roots = pem::authorities(&self.authorities, &contents[0]);
        let roots = roots.map_err(|error| errors.push(error));
        let identity = self.identity.as_ref().map(|(certificate, key)| {
            pem::identity(&provider, (certificate, &contents[1]), (key, &contents[2]))
        });
        let identity = identity.transpose();
        let identity = identity.map_err(|found| errors.extend(found));
        let (Ok((roots, expiry)), Ok(identity)) = (roots, identity) else {
            return Err(errors);
        };
        let mut expiries = Vec::new();
        expiries.extend(expiry.map(|expiry| ("authority", expiry)));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports TLS 1.2 and 1.3")
            .with_root_certificates(roots);
        let mut config = match identity {
            Some((identity, expiry)) => {
                expiries.extend(expiry.map(|expiry| ("certificate", expiry)));
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![HTTP2.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Trust {
            config: Arc::new(config),
            expiries,
        })
    }

    fn expiries(trust: &Trust) -> Vec<(&'static str, i64)> {
        trust.expiries.clone()
    }
}

impl Trust {
    /// Performs the handshake with a server that must present a certificate for `name`.
    ///
    /// # Errors
    /// If the handshake fails; [`explain`] gives the reason.
    pub async fn connect<S: ByteStream>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(name, stream).await
    }

    /// Like [`connect`](Self::connect), for a protocol other than gRPC.
    ///
    /// # Errors
    /// If the handshake fails.
    pub async fn connect_without_alpn<S: ByteStream>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.with_alpn(Vec::new()).connect(name, stream).await
    }
}

/// A message about a TLS error for the operator; `None` for other errors.
pub fn explain(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(error) => certificate(error),
        Error::InvalidMessage(_) => {
            "the port does not use TLS: try http:// instead of https://".to_owned()
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the producer requires a client certificate: set --tls-cert and --tls-key".to_owned()
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server does not support HTTP/2 over TLS: check the port".to_owned()
        }
        Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied),
        ) => format!("the producer rejects the certificate of --tls-cert ({alert:?})"),
        other => format!("TLS: {other}"),
    })
}

fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the producer's certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the producer's certificate is not valid yet".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "the producer's certificate is not signed by an authority of --tls-ca".to_owned()
        }
        CertificateError::NotValidForName => {
            "the producer's certificate is for another name: set --tls-server-name".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "the producer's certificate is not for {}; it is for {}: set --tls-server-name",
            expected.to_str(),
            presented.join(", ")
        ),
        // The error text of webpki for certificates as `openssl req -x509` creates them.
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "the producer's certificate is that of an authority (CA:TRUE): use it to sign a certificate for the producer"
                .to_owned()
        }
        other => format!("the producer's certificate is invalid: {other}"),
    }
}
