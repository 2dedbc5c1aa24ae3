//! Certificate authorities for tests, and certificate files that a test can replace.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority that signs certificates for the loopback address.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { pem, issuer })
    }

    /// Writes the authority's certificate to `name` in `dir` and returns its path.
    pub(crate) fn write(&self, dir: &Path, name: &str) -> Result<String> {
        write(dir, name, &self.pem)
    }

    /// Writes a new certificate and its key and returns their paths.
    pub(crate) fn write_identity(&self, dir: &Path, name: &str) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((
            write(dir, &format!("{name}.pem"), &certificate.pem())?,
            write(dir, &format!("{name}.key"), &key.serialize_pem())?,
        ))
    }
}

/// Writes a file atomically, as required when a running process reads it.
pub(crate) fn write(dir: &Path, name: &str, text: &str) -> Result<String> {
    let path = dir.join(name);
    let new = dir.join(format!("{name}.new"));
    fs::write(&new, text)?;
    fs::rename(&new, &path)?;
    let path = path.to_str().context("the path is not UTF-8")?;
    Ok(path.to_owned())
}
