//! TLS towards a producer: whom to trust, what to show, and what went wrong in words.

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
    /// The authorities that may sign a producer's certificate.
    pub authorities: NamedFile,
    /// Its own certificate and key, for producers that want one.
    pub identity: Option<(NamedFile, NamedFile)>,
}

/// What is made of [`Files`].
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
        let roots = roots.map_err(|wrong| errors.push(wrong));
        let identity = self.identity.as_ref().map(|(certificate, key)| {
            pem::identity(&provider, (certificate, &contents[1]), (key, &contents[2]))
        });
        let identity = identity.transpose();
        let identity = identity.map_err(|wrong| errors.extend(wrong));
        let (Ok((roots, expiry)), Ok(identity)) = (roots, identity) else {
            return Err(errors);
        };
        let mut expiries = Vec::new();
        expiries.extend(expiry.map(|expiry| ("authority", expiry)));
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("these algorithms serve TLS 1.2 and 1.3")
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
    /// Shakes hands with a server that must prove to be `name`.
    ///
    /// # Errors
    /// When it cannot, or there is no TLS; [`explain`] has words for it.
    pub async fn shake<S: ByteStream>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(name, stream).await
    }
}

/// What an error of a TLS connection means for anyone who operates it; `None` when it is not about TLS.
#[must_use]
pub fn explain(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidCertificate(wrong) => certificate(wrong),
        Error::InvalidMessage(_) => {
            "no TLS is spoken at this port: http:// instead of https://?".to_owned()
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the producer wants a certificate from its clients: --tls-cert and --tls-key".to_owned()
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "what answers there speaks TLS but not HTTP/2".to_owned()
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
        ) => format!("the producer refuses the certificate of --tls-cert ({alert:?})"),
        other => format!("TLS: {other}"),
    })
}

fn certificate(wrong: &CertificateError) -> String {
    match wrong {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the producer's certificate has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the producer's certificate is not valid yet".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "the producer's certificate is from no authority of --tls-ca".to_owned()
        }
        CertificateError::NotValidForName => {
            "the producer's certificate is for another name: see --tls-server-name".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "the producer's certificate is not for {} but for {}: see --tls-server-name",
            expected.to_str(),
            presented.join(", ")
        ),
        // webpki's own word for it; what `openssl req -x509` makes of itself.
        other if other.to_string().contains("CaUsedAsEndEntity") => {
            "the producer's certificate is an authority's own (CA:TRUE): sign one for the producer with it"
                .to_owned()
        }
        other => format!("the producer's certificate is refused: {other}"),
    }
}
