//! The settings as they are written, and what becomes of a change of each.

use clap::Parser;
use runtime::settings::{Change, CommonArgs, instead::InsteadArgs};

use super::dsps::DspsArgs;
use crate::security::SecurityArgs;

/// What becomes of changes; every setting is here once.
pub(super) const CHANGES: &[(&str, Change)] = &[
    ("http", Change::Restart),
    ("grpc", Change::Restart),
    ("admin", Change::Restart),
    // Consumers know it by these.
    ("id", Change::Restart),
    ("state", Change::Restart),
    // What is kept, and how it is cut, is laid out at the start.
    ("log_bytes", Change::Restart),
    ("chunk_bytes", Change::Restart),
    ("chunk_age", Change::Restart),
    ("queue_cookies", Change::Restart),
    ("subscriber_retention", Change::Reloaded),
    ("subscribers", Change::Reloaded),
    ("rewind_bytes", Change::Restart),
    ("pinned_bytes", Change::Restart),
    ("heartbeat", Change::Restart),
    ("user_id_bytes", Change::Restart),
    ("buyer_uid_bytes", Change::Restart),
    ("dsps", Change::Reloaded),
    ("unknown_dsps", Change::Reloaded),
    ("dsps_shown", Change::Restart),
    ("http_connections", Change::Reloaded),
    ("grpc_connections", Change::Reloaded),
    ("http_connections_per_address", Change::Reloaded),
    ("grpc_connections_per_address", Change::Reloaded),
    ("request_timeout", Change::Reloaded),
    ("idle_timeout", Change::Reloaded),
    ("write_timeout", Change::Reloaded),
    ("tls_cert", Change::Contents),
    ("tls_key", Change::Contents),
    ("tls_client_ca", Change::Contents),
    ("token_file", Change::Contents),
    ("drain_delay", Change::Reloaded),
    ("drain_timeout", Change::Reloaded),
];

const EXAMPLES: &str = "\
Examples:
  Keep four gigabytes for consumers that are away, and ask them for a token:
    producer --log-bytes 4GiB --token-file /etc/cookiesync/tokens

  Write the settings of a file that can be used from now on, and check it after a change:
    producer --log-bytes 4GiB --print-config > producer.toml
    producer --config producer.toml --check-config

  Change what is logged while it runs (with --debug-endpoints):
    curl -X PUT -d info,producer=debug http://127.0.0.1:9090/log-filter";

/// Takes sync requests over HTTP and streams their cookies to every exchange node.
///
/// Each setting is a flag, an environment variable, and a key of the TOML file (the flag's name with
/// underscores); the flag wins, then the environment, then the file.
#[derive(Debug, Clone, Parser)]
#[command(name = "producer", version = runtime::VERSION, after_help = "--help tells more of each, and shows all.", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) listening: ListeningArgs,
    #[command(flatten)]
    pub(super) keeping: KeepingArgs,
    #[command(flatten)]
    pub(super) limits: LimitArgs,
    #[command(flatten)]
    pub(super) dsps: DspsArgs,
    #[command(flatten)]
    pub(super) security: SecurityArgs,
    #[command(flatten)]
    pub(super) stopping: StoppingArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
    #[command(flatten)]
    instead: InsteadArgs,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where it listens, and who it is")]
pub(super) struct ListeningArgs {
    /// Address for sync requests (HTTP/1.1)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub(super) http: String,

    /// Address for subscribers (gRPC)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:7676")]
    pub(super) grpc: String,

    /// Address for the status page, /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    pub(super) admin: String,

    /// Name of this producer, the same across restarts and no other producer's [default: host name and gRPC port]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) id: String,

    /// Folder for the record of how far this producer got, or `none` [default: /dev/shm]
    ///
    /// By it, its consumers know after a crash or a restart how much they missed. Best in memory, and always the same for
    /// the same name; `none` keeps no record. For a folder on a disk, what changes while the producer runs is in /dev/shm, and the
    /// disk has each end: where /dev/shm does not outlive the process, nothing is known of a crash.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) state: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What it keeps")]
pub(super) struct KeepingArgs {
    /// Most bytes of cookies held for subscribers that are behind
    #[arg(long, value_name = "BYTES", default_value = "1GiB")]
    pub(super) log_bytes: String,

    /// Size at which a chunk is sealed
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "64KiB",
        hide_short_help = true
    )]
    pub(super) chunk_bytes: String,

    /// Age at which a chunk is sealed: longer means less CPU, shorter means less delay
    ///
    /// Three times that while it holds only few cookies.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    pub(super) chunk_age: String,

    /// Most cookies a subscriber may be behind before its oldest are dropped
    #[arg(long, value_name = "COUNT", default_value = "16000000")]
    pub(super) queue_cookies: String,

    /// How long the queue of a disconnected subscriber is kept
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(super) subscriber_retention: String,

    /// How much a subscriber that comes back without a cursor gets again, at most: what may have been on its way
    ///
    /// Less where it told how large its window was.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "34MiB",
        hide_short_help = true
    )]
    pub(super) rewind_bytes: String,

    /// How long a stream is silent before it says that it lives
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        hide_short_help = true
    )]
    pub(super) heartbeat: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub(super) struct LimitArgs {
    /// Most subscribers, connected or remembered
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "1024",
        hide_short_help = true
    )]
    pub(super) subscribers: String,

    /// Most bytes that the connections of slow subscribers may hold, beside the log
    ///
    /// Beyond it the worst are cut off. At least 256 KiB and two chunks.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(super) pinned_bytes: String,

    /// Longest user id accepted, in bytes
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "64",
        hide_short_help = true
    )]
    pub(super) user_id_bytes: String,

    /// Longest buyer uid accepted, in bytes after percent-decoding
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "256",
        hide_short_help = true
    )]
    pub(super) buyer_uid_bytes: String,

    /// Most HTTP connections at once
    #[arg(long, value_name = "COUNT", default_value = "16384")]
    pub(super) http_connections: String,

    /// Most gRPC connections at once
    #[arg(long, value_name = "COUNT", default_value = "2048")]
    pub(super) grpc_connections: String,

    /// Most HTTP connections at once from one address [default: no limit but --http-connections]
    ///
    /// Or from one IPv6 network of 64 bits. A load balancer's are all from one.
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub(super) http_connections_per_address: String,

    /// Most gRPC connections at once from one address [default: half of --grpc-connections]
    ///
    /// Or from one IPv6 network of 64 bits.
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub(super) grpc_connections_per_address: String,

    /// Longest time an HTTP client may take to send the head of a request
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        hide_short_help = true
    )]
    pub(super) request_timeout: String,

    /// Longest time an HTTP connection may be idle; a sixteenth of it where more than four fifths of them are taken
    #[arg(long, value_name = "TIME", default_value = "75s")]
    pub(super) idle_timeout: String,

    /// Longest time an HTTP client may take to read its answers
    #[arg(
        long,
        value_name = "TIME",
        default_value = "10s",
        hide_short_help = true
    )]
    pub(super) write_timeout: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "How it stops")]
pub(super) struct StoppingArgs {
    /// How long a producer that was told to stop takes requests on: longer than load balancers need to see it
    ///
    /// `/readyz` already says 503 meanwhile, and answers close their connections.
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub(super) drain_delay: String,

    /// Longest time to finish after a signal, and after the delay
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(super) drain_timeout: String,
}
