//! TLS of all ports, and token authentication of the gRPC port. Certificate, key and token files are reloaded when they
//! change.

pub mod tokens;

use std::{net::SocketAddr, sync::Arc};

use runtime::{
    connect::credentials::{load_files, pair},
    listen::Stage,
    reload::{NamedFile, Reloader},
    services::Services,
    settings::{BOOLEAN, CONTENTS, ConfigErrors},
    tls::server::{Files, HANDSHAKES_MAX, Handshakes},
    token,
};

use tokens::TokenCheck;

/// Maximum concurrent handshakes on the HTTP port. Many browsers open a connection for each sync, and a handshake takes a
/// round trip. At 200 ms per round trip, 4,096 suffice for 20,000 new connections per second.
const HTTP_HANDSHAKES_MAX: usize = 4_096;

/// The settings as written; an empty string means not set.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "TLS and authentication")]
pub struct SecurityArgs {
    /// PEM file with the gRPC server certificate, followed by its intermediate certificates. Enables TLS on the gRPC and API ports
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    tls_cert: String,

    /// PEM file with the private key of --tls-cert
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    tls_key: String,

    /// PEM file with CA certificates for client authentication. If set, clients must present a certificate
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    tls_client_ca: String,

    /// PEM file with the HTTP server certificate, followed by its intermediate certificates. Enables TLS on the sync port
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    http_tls_cert: String,

    /// PEM file with the private key of --http-tls-cert
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    http_tls_key: String,

    /// File with bearer tokens, one per line. If set, every gRPC call must present a token
    ///
    /// A token must be 16 to 512 bytes long. Health checks (`Check`) need no token.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    token_file: String,

    /// Admit every client that reaches a --grpc address other than loopback, without --token-file or --tls-client-ca
    #[arg(long, value_name = BOOLEAN)]
    grpc_insecure: bool,
}

/// The validated settings and the content of their files, which `Debug` does not print.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// Certificate of the gRPC port; `None` if its connections are unencrypted.
    pub(crate) tls: Option<Arc<Reloader<Files>>>,
    /// Certificate of the HTTP port; `None` if its connections are unencrypted.
    pub(crate) http_tls: Option<Arc<Reloader<Files>>>,
    /// Clients must present a certificate.
    requires_certificates: bool,
    token: Option<Arc<Reloader<token::File>>>,
}

/// The checks that every connection and call must pass.
#[derive(Debug, Clone, Default)]
pub struct AccessControl {
    /// TLS of the gRPC port; `None` if its connections are unencrypted.
    pub tls: Option<Arc<Handshakes>>,
    /// TLS of the HTTP port; `None` if its connections are unencrypted.
    pub http_tls: Option<Arc<Handshakes>>,
    /// TLS of the API port; `None` if its connections are unencrypted.
    pub api_tls: Option<Arc<Handshakes>>,
    /// The token check of gRPC calls; `None` if they need no token.
    pub tokens: Option<Arc<TokenCheck>>,
}

impl SecurityArgs {
    /// Reads the files; adds all errors to `errors`, also if every client could read the streams at the address `grpc`.
    pub fn check(&self, grpc: SocketAddr, errors: &mut ConfigErrors) -> Security {
        let is_protected = !self.token_file.is_empty() || !self.tls_client_ca.is_empty();
        if !(grpc.ip().is_loopback() || is_protected || self.grpc_insecure) {
            errors.add(format!(
                "--grpc: {grpc} is not a loopback address: set --token-file or --tls-client-ca, or admit every client with --grpc-insecure"
            ));
        }
        let client_authorities = NamedFile::from_flag("--tls-client-ca", &self.tls_client_ca);
        if client_authorities.is_some() && self.tls_cert.is_empty() {
            errors.add("--tls-client-ca: requires --tls-cert and --tls-key");
        }
        let mut load = |certificate, key, client_authorities, kind| {
            let (certificate, key) = pair(errors, certificate, key)?;
            let files = Files {
                certificate,
                key,
                client_authorities,
                kind,
            };
            load_files(errors, files)
        };
        Security {
            requires_certificates: !self.tls_client_ca.is_empty(),
            tls: load(
                NamedFile::from_flag("--tls-cert", &self.tls_cert),
                NamedFile::from_flag("--tls-key", &self.tls_key),
                client_authorities,
                "certificate",
            ),
            http_tls: load(
                NamedFile::from_flag("--http-tls-cert", &self.http_tls_cert),
                NamedFile::from_flag("--http-tls-key", &self.http_tls_key),
                None,
                "http_certificate",
            ),
            token: NamedFile::from_flag("--token-file", &self.token_file)
                .and_then(|file| load_files(errors, token::File::new(file))),
        }
    }
}

impl Security {
    /// Registers the metrics, and watches the files in tasks of `stage`. Of the `http_connections`, half may be in a handshake.
    /// Beyond that, the oldest handshakes are aborted, so that silent clients cannot fill the HTTP port.
    ///
    /// # Errors
    /// When one of the metrics is registered already.
    pub fn open(
        &self,
        services: &Services,
        stage: &Stage,
        http_connections: usize,
    ) -> prometheus::Result<AccessControl> {
        let mut access = AccessControl::default();
        services.watch(self.tls.as_ref(), stage);
        services.watch(self.http_tls.as_ref(), stage);
        services.watch(self.token.as_ref(), stage);
        let open = |files: &Arc<_>, counter| {
            Handshakes::new(Arc::clone(files), &services.registry, "producer", counter)
        };
        if let Some(files) = &self.tls {
            let handshakes = open(files, "tls_handshakes_total")?;
            access.api_tls = Some(Arc::new(handshakes.for_http_1(HANDSHAKES_MAX)));
            access.tls = Some(Arc::new(handshakes));
        }
        if let Some(files) = &self.http_tls {
            let handshakes = open(files, "http_tls_handshakes_total")?;
            let handshakes_max = HTTP_HANDSHAKES_MAX.min(http_connections.div_ceil(2));
            access.http_tls = Some(Arc::new(handshakes.for_http_1(handshakes_max)));
        }
        if let Some(tokens) = &self.token {
            let check = TokenCheck::new(Arc::clone(tokens), &services.registry)?;
            access.tokens = Some(Arc::new(check));
        }
        Ok(access)
    }

    /// The tokens of subscribers, if they need one.
    pub(crate) fn tokens(&self) -> Option<Arc<Reloader<token::File>>> {
        self.token.clone()
    }

    /// How other hosts can read the streams at `address`.
    pub(crate) fn exposure(&self, address: SocketAddr) -> Option<&'static str> {
        match (&self.tls, &self.token) {
            _ if address.ip().is_loopback() => None,
            (None, None) => Some(
                "--grpc-insecure: streams are unencrypted and open to any client that reaches this address (set --tls-cert and --token-file)",
            ),
            (None, Some(_)) => Some(
                "tokens and streams are unencrypted and can be read in transit (set --tls-cert)",
            ),
            (Some(_), None) if !self.requires_certificates => Some(
                "--grpc-insecure: streams are encrypted, but open to any client that reaches this address (set --tls-client-ca or --token-file)",
            ),
            (Some(_), _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn exposed_port_without_tls_or_tokens_is_reported() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"a-token-of-some-length").unwrap();
        let path = file.path().display().to_string();
        let mut errors = ConfigErrors::default();
        let (loopback, any) = ("127.0.0.1:1".parse().unwrap(), "0.0.0.0:1".parse().unwrap());
        let mut check = |token_file| {
            let args = SecurityArgs {
                token_file,
                grpc_insecure: true,
                ..SecurityArgs::default()
            };
            args.check(any, &mut errors)
        };
        let (plain, token) = (check(String::new()), check(path));
        assert!(errors.is_empty(), "{errors}");
        assert_eq!(plain.exposure(loopback), None);
        assert_eq!(token.exposure("[::1]:1".parse().unwrap()), None);
        let exposed = |security: &Security| security.exposure(any).unwrap();
        assert!(exposed(&plain).starts_with("--grpc-insecure: streams are unencrypted"));
        assert!(exposed(&token).starts_with("tokens and streams are unencrypted"));
        assert!(!format!("{token:?}").contains("a-token"));
    }
}
