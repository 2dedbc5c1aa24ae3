//! How a reader proves who it is, and knows whom it talks to: the settings, checked.

use std::{net::IpAddr, sync::Arc};

use rustls::pki_types::ServerName;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    reload::{Metrics, NamedFile, Reloader, Source},
    settings::ConfigErrors,
    tls::client::Files,
    token,
};

/// The settings as they are written; what is empty is not set.
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

/// What a reader has to connect with. The files may be replaced at any time.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// For `https` producers.
    pub tls: Option<Arc<Reloader<Files>>>,
    /// Whose name a producer's certificate must bear instead of its URL's host.
    pub server_name: Option<ServerName<'static>>,
    /// Sent with each call.
    pub token: Option<Arc<Reloader<token::File>>>,
}

impl Security {
    /// Reads the files that `flags` name for producers of which `some_https` says whether any is reached by TLS;
    /// notes all that is wrong.
    pub fn check(errors: &mut ConfigErrors, flags: Flags<'_>, some_https: bool) -> Self {
        let authorities = NamedFile::from_flag("--tls-ca", flags.authorities);
        let certificate = NamedFile::from_flag("--tls-cert", flags.certificate);
        let key = NamedFile::from_flag("--tls-key", flags.key);
        let any = authorities.is_some() || certificate.is_some() || key.is_some();
        if !some_https && (any || !flags.server_name.is_empty()) {
            errors.add("--tls-…: no producer is an https:// one, so they would do nothing");
        }
        if some_https && authorities.is_none() {
            errors.add("--tls-ca: needed for https:// producers: whose certificates to trust");
        }
        let identity = pair(errors, certificate, key);
        let files = authorities.map(|authorities| Files {
            authorities,
            identity,
        });
        let name = (!flags.server_name.is_empty()).then(|| server_name(flags.server_name));
        Self {
            tls: files.and_then(|files| loaded(errors, files)),
            server_name: name.and_then(|name| errors.ok("--tls-server-name", name)),
            token: NamedFile::from_flag("--token-file", flags.token_file)
                .and_then(|file| loaded(errors, token::File(file))),
        }
    }

    /// Looks at the files again and again until `stop`, in tasks of `tasks`.
    pub fn watch(&self, metrics: &Metrics, tasks: &TaskTracker, stop: &CancellationToken) {
        if let Some(tls) = &self.tls {
            tasks.spawn(Arc::clone(tls).watch(metrics.clone(), stop.clone()));
        }
        if let Some(token) = &self.token {
            tasks.spawn(Arc::clone(token).watch(metrics.clone(), stop.clone()));
        }
    }
}

/// A certificate and its key, of which neither is any use alone.
pub fn pair(
    errors: &mut ConfigErrors,
    certificate: Option<NamedFile>,
    key: Option<NamedFile>,
) -> Option<(NamedFile, NamedFile)> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => {
            errors.add("--tls-cert: needs --tls-key too");
            None
        }
        (None, Some(_)) => {
            errors.add("--tls-key: needs --tls-cert too");
            None
        }
        (None, None) => None,
    }
}

/// The files of `source`, read; what is wrong with them is noted.
pub fn loaded<S: Source>(errors: &mut ConfigErrors, source: S) -> Option<Arc<Reloader<S>>> {
    match Reloader::load(source) {
        Ok(reloaded) => Some(Arc::new(reloaded)),
        Err(wrong) => {
            wrong.into_iter().for_each(|error| errors.add(error));
            None
        }
    }
}

/// A name, or an address, as certificates have them.
pub(super) fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.to_owned())
        .map_err(|_| format!("`{text}` is neither a host name nor an address"))
}

/// Whether what goes to `host` stays on this machine.
#[must_use]
pub fn is_loopback_host(host: &str) -> bool {
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}
