//! Credentials of a client and trusted authorities: the validated TLS and token settings.

use std::{net::IpAddr, sync::Arc};

use rustls::pki_types::ServerName;

use crate::{
    reload::{NamedFile, Reloader, Source},
    services::Services,
    settings::{CONTENTS, ConfigErrors},
    tls::client::Files,
    token,
};

/// Settings of a client of producers; empty means unset.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "TLS and authentication")]
pub struct SecurityArgs {
    /// PEM file with the CA certificates for verifying https:// producers
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub tls_ca: String,

    /// PEM file with the client certificate of this consumer, for producers that require one
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub tls_cert: String,

    /// PEM file with the private key of --tls-cert
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub tls_key: String,

    /// Server name to verify in the producer's certificate [default: the host of the URL]
    #[arg(long, value_name = "NAME", default_value = "")]
    pub tls_server_name: String,

    /// File with the bearer token for the producers. If the file contains several tokens, only the first is used
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub token_file: String,
}

/// TLS settings of a NATS client; empty means unset.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "TLS to NATS")]
pub struct NatsTlsArgs {
    /// PEM file with the CA certificates for verifying NATS servers, instead of those of the system
    ///
    /// If it or --nats-tls-cert is set, connections without TLS are refused. The files are read again for each connection.
    #[arg(long, value_name = "FILE", default_value = "")]
    pub nats_tls_ca: String,

    /// PEM file with the client certificate, for NATS servers that require one
    #[arg(long, value_name = "FILE", default_value = "")]
    pub nats_tls_cert: String,

    /// PEM file with the private key of --nats-tls-cert
    #[arg(long, value_name = "FILE", default_value = "")]
    pub nats_tls_key: String,
}

impl NatsTlsArgs {
    /// Records an error if a file is set although there is no NATS server.
    pub fn check_unused(&self, errors: &mut ConfigErrors) {
        let files = [&self.nats_tls_ca, &self.nats_tls_cert, &self.nats_tls_key];
        if files.iter().any(|file| !file.is_empty()) {
            errors.add("--nats-tls-…: has no effect without --archive");
        }
    }
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
    /// Loads the files named by `args`, and records all errors. `has_https` states whether any producer uses TLS.
    pub fn check(errors: &mut ConfigErrors, args: &SecurityArgs, has_https: bool) -> Self {
        let authorities = NamedFile::from_flag("--tls-ca", &args.tls_ca);
        let certificate = NamedFile::from_flag("--tls-cert", &args.tls_cert);
        let key = NamedFile::from_flag("--tls-key", &args.tls_key);
        let any = authorities.is_some() || certificate.is_some() || key.is_some();
        if !has_https && (any || !args.tls_server_name.is_empty()) {
            errors.add("--tls-…: has no effect, because no producer URL is https://");
        }
        if has_https && authorities.is_none() {
            errors.add("--tls-ca: required for https:// producers; set it to a PEM file of CA certificates");
        }
        let identity = pair(errors, certificate, key);
        let files = authorities.map(|authorities| Files {
            authorities,
            identity,
        });
        let name = (!args.tls_server_name.is_empty()).then(|| server_name(&args.tls_server_name));
        Self {
            tls: files.and_then(|files| load_files(errors, files)),
            server_name: name.and_then(|name| errors.ok("--tls-server-name", name)),
            token: NamedFile::from_flag("--token-file", &args.token_file)
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
pub fn is_loopback_host(host: &str) -> bool {
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}
