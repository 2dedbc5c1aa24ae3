//! Command-line flags. The clap group of a flag states whether a reload applies its new value.

use std::{net::SocketAddr, time::Duration};

use clap::Parser;
use runtime::settings::{BOOLEAN, CONTENTS, CommonArgs, RELOADED, TIME_MAX, address, count, time};
use url::Url;

use crate::client::http_url;

const EXAMPLES: &str = "\
Examples:
  Check the applications of a file, with a NATS server on this machine:
    nats-server --jetstream --store_dir nats &
    revalidator --apps examples/revalidator.toml

  Create a job, and show all jobs:
    curl --json '{\"app\": \"shop\", \"allowDelete\": \"partial\"}' http://127.0.0.1:9096/v1/jobs
    curl http://127.0.0.1:9096/v1/jobs

  Write the current settings to a file, and check the file after a change:
    revalidator --apps examples/revalidator.toml --print-config > revalidator.toml
    revalidator --config revalidator.toml --check-config";

/// Check cached objects against their origin
#[derive(Debug, Clone, Parser)]
#[command(name = "revalidator", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    #[command(flatten)]
    pub(crate) nats_tls: runtime::connect::credentials::NatsTlsArgs,
    #[command(flatten)]
    pub(crate) limiter: LimiterArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Applications, broker, and roles of the process.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Applications and broker")]
pub struct WorkArgs {
    /// File (TOML) with applications; each defines what its jobs check, and how
    ///
    /// The file is reloaded when it changes; an invalid version is rejected. Running jobs keep the version with which they started.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub apps: String,

    /// URLs of the NATS servers, separated by commas: nats:// or tls://, with USER:PASSWORD@ or TOKEN@ if required
    #[arg(
        long,
        value_name = "URLS",
        hide_env_values = true,
        default_value = "nats://127.0.0.1:4222"
    )]
    pub nats: String,

    /// Number of workers; each processes one job at a time
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count(0..=16))]
    pub workers: usize,

    /// Do not run a maker, the task that sends a job's assets to workers and counts the results; another process must run one
    ///
    /// If the maker of one process cannot read the assets file of a job, the maker of another process sends the job's assets.
    #[arg(long, value_name = BOOLEAN)]
    pub no_maker: bool,
}

/// The outbound limiter.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Outbound limiter")]
pub(crate) struct LimiterArgs {
    /// URL of the limiter that applications with the setting `limit` use
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9099", value_parser = limiter_url)]
    pub(crate) limiter: Url,

    /// File that contains the token to send to the limiter
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub(crate) limiter_token_file: String,
}

fn limiter_url(text: &str) -> Result<Url, &'static str> {
    http_url(text).ok_or("use a URL like http://127.0.0.1:9099")
}

/// API port and authentication.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "API and authentication")]
pub struct ApiArgs {
    /// Address of the API port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9096", value_parser = address)]
    pub listen: SocketAddr,

    /// File with bearer tokens, one per line. If set, every request must present a token
    ///
    /// A token must be 16 to 512 bytes long. Without a token file, --listen must be a loopback address.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub token_file: String,
}

/// Admin port and shutdown.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Admin and shutdown")]
pub struct AdminArgs {
    /// Address of the admin port, with the status page, /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9097", value_parser = address)]
    pub admin: SocketAddr,

    /// Maximum time to finish the current batches after a shutdown signal; then unfinished batches are released to other processes
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "30s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_timeout: Duration,
}
