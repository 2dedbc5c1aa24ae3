//! Credentials of a client and trusted authorities: the validated TLS and token settings.

use std::{net::IpAddr, sync::Arc};

use rustls::pki_types::ServerName;

use crate::{
    reload::{NamedFile, Reloader, Source},
    services::Services,
    settings::ConfigErrors,
    tls::client::Files,
    token,
};

/// The unvalidated settings; empty means unset.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flags<'a> {
    /// `--tls-ca`
    pub authorities: &'a str,
    /// `--tls-cert`
    pub certificate: &'a str,
    /// `--tls-key`
    pub key: &'a str,
    /// `--tls-server-name`
    pub server_name: &'a str,
    /// `--token-file`
    pub token_file: &'a str,
}

/// Credentials and trust of a client. The files are reloaded when they change.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// TLS for `https` producers.
    pub tls: Option<Arc<Reloader<Files>>>,
    /// Required name in a producer's certificate, instead of the host of its URL.
    pub server_name: Option<ServerName<'static>>,
    /// Bearer token for each call.
    pub token: Option<Arc<Reloader<token::File>>>,
}

impl Security {
    /// Loads the files named by `flags`, and records all errors. `has_https` states whether any producer uses TLS.
    pub fn check(errors: &mut ConfigErrors, flags: Flags<'_>, has_https: bool) -> Self {
        let authorities = NamedFile::from_flag("--tls-ca", flags.authorities);
        let certificate = NamedFile::from_flag("--tls-cert", flags.certificate);
        let key = NamedFile::from_flag("--tls-key", flags.key);
        let any = authorities.is_some() || certificate.is_some() || key.is_some();
        if !has_https && (any || !flags.server_name.is_empty()) {
            errors.add("--tls-…: no effect, because no producer URL is https://");
        }
        if has_https && authorities.is_none() {
            errors.add("--tls-ca: required for https:// producers; name a file with the trusted authorities");
        }
        let identity = pair(errors, certificate, key);
        let files = authorities.map(|authorities| Files {
            authorities,
            identity,
        });
        let name = (!flags.server_name.is_empty()).then(|| server_name(flags.server_name));
        Self {
            tls: files.and_then(|files| load_files(errors, files)),
            server_name: name.and_then(|name| errors.ok("--tls-server-name", name)),
            token: NamedFile::from_flag("--token-file", flags.token_file)
                .and_then(|file| load_files(errors, token::File::new(file))),
        }
    }

    /// Reloads the files when they change.
    pub fn watch(&self, services: &Services) {
        services.watch(self.tls.as_ref(), &services.stage);
        services.watch(self.token.as_ref(), &services.stage);
    }
}

/// A certificate with its key; records an error if only one is set.
pub fn pair(
    errors: &mut ConfigErrors,
    certificate: Option<NamedFile>,
    key: Option<NamedFile>,
) -> Option<(NamedFile, NamedFile)> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(NamedFile { flag, .. }), None) => {
            errors.add(format!("{flag}: requires {}", flag.replace("cert", "key")));
            None
        }
        (None, Some(NamedFile { flag, .. })) => {
            errors.add(format!("{flag}: requires {}", flag.replace("key", "cert")));
            None
        }
        (None, None) => None,
    }
}

/// Loads the files of `source`, and records their errors.
pub fn load_files<S: Source>(errors: &mut ConfigErrors, source: S) -> Option<Arc<Reloader<S>>> {
    match Reloader::load(source) {
        Ok(reloader) => Some(Arc::new(reloader)),
        Err(found) => {
            found.into_iter().for_each(|error| errors.add(error));
            None
        }
    }
}

/// Parses a DNS name or address for certificate validation.
pub(super) fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned())
        .map_err(|_| format!("`{text}` is neither a host name nor an address"))
}

/// Whether `host` is a loopback name or address.
#[must_use]
pub fn is_loopback_host(host: &str) -> bool {
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}
