//! Settings of the archive.

use runtime::{
    connect::credentials::NatsTlsArgs,
    settings::{ConfigErrors, optional, size},
};

use crate::archive::{Nats, NodeReports};

/// The settings as written.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Archive")]
pub(super) struct ArchiveArgs {
    /// JetStream stream for an archive of the log: URLs of the NATS servers, separated by commas, then the name of the stream, such as
    /// nats://USER:PASSWORD@nats-1:4222/COOKIES [default: none]
    ///
    /// The stream must exist; its subject must be `cookies.>`. Requires a build with `--features producer/archive`.
    #[arg(long, value_name = "URL", default_value = "")]
    archive: String,

    /// Name of a JetStream stream on the same servers, in which nodes that read the archive report their positions [default: none]
    ///
    /// The stream must exist; its subject must be `cookies-nodes.>`. Receipts of deletions count nodes whose reports are authenticated
    /// with a token in --token-file.
    #[arg(long, value_name = "STREAM", default_value = "")]
    node_reports: String,

    /// Maximum rate at which the archive is written, for when it has to catch up [default: 64MiB]
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "",
        hide_short_help = true,
        value_parser = optional(size(1 << 20..=usize::MAX))
    )]
    archive_bytes_per_second: std::option::Option<usize>,

    #[command(flatten)]
    tls: NatsTlsArgs,
}

/// The validated settings.
#[derive(Debug, Clone)]
pub struct ArchiveConfig {
    /// Where to publish, if there is an archive.
    pub nats: Option<Nats>,
    /// Where nodes report their positions.
    pub node_reports: Option<NodeReports>,
    /// Maximum rate.
    pub bytes_per_second: usize,
}

impl ArchiveArgs {
    /// Adds all errors to `errors`.
    pub(super) fn check(self, errors: &mut ConfigErrors, chunk_bytes: usize) -> ArchiveConfig {
        let nats = if self.archive.is_empty() {
            self.tls.check_unused(errors);
            if self.archive_bytes_per_second.is_some() {
                errors.add("--archive-bytes-per-second: requires --archive");
            }
            if !self.node_reports.is_empty() {
                errors.add("--node-reports: requires --archive");
            }
            None
        } else {
            Nats::check(errors, &self.archive, &self.tls, chunk_bytes)
        };
        let with_reports = nats.as_ref().filter(|_| !self.node_reports.is_empty());
        ArchiveConfig {
            node_reports: with_reports.and_then(|it| it.node_reports(errors, &self.node_reports)),
            nats,
            bytes_per_second: self.archive_bytes_per_second.unwrap_or(64 << 20),
        }
    }
}
