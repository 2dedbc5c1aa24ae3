//! How producers are reached: TLS, and what they want to see.

use runtime::{
    connect::credentials::{Flags, Security},
    settings::{CONTENTS, ConfigErrors},
};

use super::ProducerUrl;

/// The settings as they are written; what is empty is not set.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What it shows producers")]
pub(super) struct SecurityArgs {
    /// PEM file with the authorities that may sign the certificate of an https:// producer
    ///
    /// It is checked every second, as are the next two and the token.
    #[arg(
        long,
        group = CONTENTS,
        value_name = "FILE",
        default_value = "",
    )]
    tls_ca: String,

    /// PEM file with this consumer's certificate, for producers that want one
    #[arg(
        long,
        group = CONTENTS,
        value_name = "FILE",
        default_value = "",
    )]
    tls_cert: String,

    /// PEM file with the private key of that certificate
    #[arg(
        long,
        group = CONTENTS,
        value_name = "FILE",
        default_value = "",
    )]
    tls_key: String,

    /// Server name to verify in the producer's certificate [default: host of the URL]
    #[arg(long, value_name = "NAME", default_value = "")]
    tls_server_name: String,

    /// File whose first line is the token that producers want
    #[arg(
        long,
        group = CONTENTS,
        value_name = "FILE",
        default_value = "",
    )]
    token_file: String,
}

impl SecurityArgs {
    /// Reads the files; notes all that is wrong.
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
