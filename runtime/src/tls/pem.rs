//! Parses keys and certificates from the contents of PEM files. Does no I/O.

use std::sync::Arc;

use rustls::{
    Error, InconsistentKeys, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    sign::CertifiedKey,
};

use super::validity::not_after;
use crate::reload::NamedFile;

/// A certificate chain with its private key.
pub(super) fn identity(
    provider: &CryptoProvider,
    (certificate, certificate_pem): (&NamedFile, &[u8]),
    (key, key_pem): (&NamedFile, &[u8]),
) -> Result<(Arc<CertifiedKey>, Option<i64>), Vec<String>> {
    let chain = certificates(certificate, certificate_pem);
    let signing = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|error| match error {
            pem::Error::NoItemsFound => key.error("contains no private key"),
            // The error may contain part of the key.
            _ => key.error("is not valid PEM"),
        })
        .and_then(|der| {
            let loaded = provider.key_provider.load_private_key(der);
            loaded.map_err(|_| key.error("unsupported or invalid private key"))
        });
    let (chain, signing) = match (chain, signing) {
        (Ok(chain), Ok(signing)) => (chain, signing),
        (chain, signing) => return Err(chain.err().into_iter().chain(signing.err()).collect()),
    };
    let expiry = earliest(&chain);
    let identity = CertifiedKey::new(chain, signing);
    match identity.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            let other = certificate.flag;
            return Err(vec![
                key.error(format!("does not match the first certificate of {other}")),
            ]);
        }
        Err(error) => return Err(vec![certificate.error(error)]),
    }
    Ok((Arc::new(identity), expiry))
}

/// Trusted authorities.
pub(super) fn authorities(
    file: &NamedFile,
    contents: &[u8],
) -> Result<(Arc<RootCertStore>, Option<i64>), String> {
    let certificates = certificates(file, contents)?;
    let expiry = earliest(&certificates);
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| file.error(error))?;
    }
    Ok((Arc::new(roots), expiry))
}

fn certificates(file: &NamedFile, contents: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(contents).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(file.error("contains no certificate")),
        Ok(certificates) => Ok(certificates),
        Err(_) => Err(file.error("is not valid PEM")),
    }
}

fn earliest(certificates: &[CertificateDer<'_>]) -> Option<i64> {
    let ends = certificates.iter();
    ends.filter_map(|certificate| not_after(certificate)).min()
}
