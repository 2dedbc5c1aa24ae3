//! Command-line flags. The clap group of a flag states whether a reload applies its new value.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use runtime::{
    listen,
    rate_limit::HeaderFormat,
    settings::{CONTENTS, CommonArgs, RELOADED, TIME_MAX, address, count, optional, size, time},
};

const EXAMPLES: &str = "\
Examples:
  Serve the limits of a file, and query the earliest time for a call:
    limiter serve --limits examples/limits.toml
    curl -s http://127.0.0.1:9099/v1/limits/partner/client-7/delay

  Reserve a slot, and wait for it:
    curl -s --json '{\"wait\": true}' http://127.0.0.1:9099/v1/limits/partner/client-7/reserve

  Write the current settings to a file, and check the file after a change:
    limiter serve --limits examples/limits.toml --print-config > limiter.toml
    limiter serve --config limiter.toml --check-config";

/// Serve rate limits to other processes over HTTP
#[derive(Debug, Clone, Parser)]
#[command(name = "limiter", bin_name = "limiter serve", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) api: ApiArgs,
    #[command(flatten)]
    pub(super) limits: LimitsArgs,
    #[command(flatten)]
    pub(super) admin: AdminArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// API port and authentication.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "API and authentication")]
pub struct ApiArgs {
    /// Address of the API port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9099", value_parser = address)]
    pub listen: SocketAddr,

    /// File with tokens. If set, every request must present a token
    ///
    /// Each line is NAME TOKEN LIMITS, such as `billing TOKEN dsp-17,partner`; LIMITS is `*` for all limits. A token must be
    /// 16 to 512 bytes long. Without a token file, --listen must be a loopback address.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub token_file: String,

    /// Rate-limit headers in HTTP responses: x-ratelimit, ratelimit or none
    ///
    /// `x-ratelimit` sends X-RateLimit-Limit, -Remaining and -Reset (in seconds); `ratelimit` sends RateLimit and RateLimit-Policy
    /// (draft-ietf-httpapi-ratelimit-headers-10).
    #[arg(
        long,
        value_name = "FIELDS",
        default_value = "x-ratelimit",
        hide_short_help = true
    )]
    pub ratelimit_fields: HeaderFormat,

    /// Maximum number of connections to the API port. Each connection processes one request at a time
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "4096",
        hide_short_help = true,
        value_parser = count(1..=1_000_000)
    )]
    pub connections: usize,

    /// Maximum number of connections to the API port from one address; at most three quarters of --connections
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "2048",
        hide_short_help = true,
        value_parser = count(1..=1_000_000)
    )]
    pub connections_per_address: usize,
}

impl ApiArgs {
    /// Connection limits of the API port.
    pub(in super::super) fn limits(&self) -> listen::Limits {
        listen::Limits {
            connections_max: self.connections,
            connections_per_address_max: Some(self.connections_per_address),
            request_timeout: Some(Duration::from_secs(10)),
            idle_timeout: Duration::from_secs(300),
            write_timeout: Some(Duration::from_secs(30)),
        }
    }
}

/// Limits, counters and state.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits and state")]
pub(super) struct LimitsArgs {
    /// Limits file (TOML)
    ///
    /// The file is reloaded when it changes; an invalid version is rejected. Validate a file with `limiter check`.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub(super) limits: String,

    /// MongoDB collection with limits, such as company.limits. Each document defines one limit, named by its _id, and
    /// overrides the limit of that name in the file
    ///
    /// The collection is read every second; an invalid version is rejected. Requires a build with `--features limiter/mongodb`.
    #[arg(
        long,
        value_name = "DATABASE.COLLECTION",
        default_value = "",
        value_parser = optional(|text| collection(text).map_err(Into::into))
    )]
    pub(super) limits_collection: std::option::Option<(String, String)>,

    /// Connection string (mongodb://…) of the MongoDB deployment that contains --limits-collection
    #[arg(
        long,
        value_name = "URI",
        hide_env_values = true,
        default_value = "",
        hide_short_help = true
    )]
    pub(super) limits_mongodb: String,

    /// Directory for a record of how much of each quota is used
    ///
    /// The directory is created if it is missing. Only one limiter can use a directory at a time.
    #[arg(long, value_name = "DIR", default_value = "limiter-state")]
    pub(super) state: PathBuf,

    /// Maximum number of counters; each rule of a limit uses one counter per key. When the maximum is reached, unused counters are evicted
    #[arg(long, value_name = "COUNT", default_value = "400000", value_parser = count(1..=100_000_000))]
    pub(super) counters: usize,

    /// Maximum memory for counters of the algorithms sliding_log (8 bytes per call) and step_window (16 bytes per step)
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1GiB",
        hide_short_help = true,
        value_parser = size(1 << 20..=usize::MAX)
    )]
    pub(super) counters_memory: usize,
}

/// Admin port and shutdown.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Admin and shutdown")]
pub struct AdminArgs {
    /// Address of the admin port, with the status page, /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9098", value_parser = address)]
    pub admin: SocketAddr,

    /// Maximum time to finish requests and write the state to disk after a shutdown signal
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_timeout: Duration,
}

/// Parses DATABASE.COLLECTION; the name of the database ends at the first dot.
fn collection(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('.');
    let parts = parts.filter(|(database, name)| !database.is_empty() && !name.is_empty());
    let (database, name) = parts.ok_or("use DATABASE.COLLECTION")?;
    Ok((database.to_owned(), name.to_owned()))
}
