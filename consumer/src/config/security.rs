//! TLS and authentication towards producers.

use runtime::{
    connect::credentials::{Flags, Security},
    settings::{CONTENTS, ConfigErrors},
};

use super::ProducerUrl;

/// Settings as written by the operator; empty means unset.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "TLS and authentication")]
pub(super) struct SecurityArgs {
    /// PEM file with the CA certificates of https:// producers
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    tls_ca: String,

    /// PEM file with the client certificate of this consumer, for producers that require one
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    tls_cert: String,

    /// PEM file with the private key of --tls-cert
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    tls_key: String,

    /// Server name to verify in the producer's certificate [default: host of the URL]
    #[arg(long, value_name = "NAME", default_value = "")]
    tls_server_name: String,

    /// File with bearer tokens, one per line; the first is sent to the producers
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    token_file: String,
}

impl SecurityArgs {
    /// Loads the files and collects all errors.
    pub(super) fn check(&self, errors: &mut ConfigErrors, producers: &[ProducerUrl]) -> Security {
        let flags = Flags {
            authorities: &self.tls_ca,
            certificate: &self.tls_cert,
            key: &self.tls_key,
            server_name: &self.tls_server_name,
            token_file: &self.token_file,
        };
        Security::check(
            errors,
            flags,
            producers.iter().any(|producer| producer.https),
        )
    }
}
