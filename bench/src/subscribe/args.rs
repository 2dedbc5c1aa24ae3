//! Command-line options of `bench subscribe`.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use clap::{Args, ValueEnum};
use runtime::connect::credentials::SecurityArgs;

use crate::{report::ReportArgs, values::parse_rate};

/// Open streams from a producer, and check the received cookies.
///
/// Without --duration or --requests, the command runs until Ctrl-C or the end of the streams; a report is written in any case. The
/// exit code is 1 if a stream violated the protocol (repeated a sequence number, or omitted one without a gap message), or received
/// fewer cookies than --requests.
#[derive(Debug, Clone, Args)]
pub struct SubscribeArgs {
    /// gRPC address of the producer.
    #[arg(long, default_value = "http://127.0.0.1:7676")]
    pub producer: String,
    /// Number of streams, each with its own connection.
    #[arg(short, long, default_value = "1")]
    pub streams: NonZeroUsize,
    /// Maximum duration.
    #[arg(short, long, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// Number of cookies, received or declared lost, after which each stream ends.
    #[arg(short, long)]
    pub requests: Option<u64>,
    /// Call of the streams.
    #[arg(long, value_enum, default_value_t = Call::Subscribe)]
    pub call: Call,
    /// TLS and tokens.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// Numbers of streams to measure. For each number, a producer is started on this machine, and a load is sent for --duration
    /// (default 5s) while that many streams are open.
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        conflicts_with_all = ["producer", "streams", "requests"]
    )]
    pub fan_out: Vec<NonZeroUsize>,
    /// Requests per second of the load with --fan-out [default: as fast as responses arrive].
    #[arg(short = 'l', long, requires = "fan_out", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Call of the `CookieStreamer` service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Call {
    /// Chunks with sequence numbers.
    Subscribe,
    /// One cookie per message without a sequence number, so that losses are not detected.
    GetCookies,
}
