//! The settings, a field for each: what it is called, what it takes, its default, and by its group what becomes of a change.
//!
//! What is in no group needs a restart: consumers know a producer by its addresses and name, and what is kept, and how it is cut,
//! is laid out at the start.

use std::{convert::Infallible, net::SocketAddr, ops::RangeInclusive, time::Duration};

use clap::Parser;
use proto::{
    ids,
    limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, HEARTBEAT_MAX},
};
use runtime::{
    listen,
    settings::{CommonArgs, RELOADED, TIME_MAX, address, count, optional, size, time},
};

use super::{dsps::DspsArgs, shaping::LimitsArgs};
use crate::{epoch_history::State, security::SecurityArgs};

/// Most connections that can be asked for: far beyond what one machine has.
const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;

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
#[derive(Debug, Clone, Parser)]
#[command(name = "producer", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) listening: Listening,
    #[command(flatten)]
    pub(super) keeping: Keeping,
    #[command(flatten)]
    pub(super) limits: Granted,
    #[command(flatten)]
    pub(super) dsps: DspsArgs,
    #[command(flatten)]
    pub(super) shaping: LimitsArgs,
    #[command(flatten)]
    pub(super) security: SecurityArgs,
    #[command(flatten)]
    pub(super) stopping: Stopping,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// Where a producer listens, and who it is.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where it listens, and who it is")]
pub struct Listening {
    /// Address for sync requests (HTTP/1.1)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", value_parser = address)]
    pub http: SocketAddr,

    /// Address for subscribers (gRPC)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:7676", value_parser = address)]
    pub grpc: SocketAddr,

    /// Address for the status page, /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090", value_parser = address)]
    pub admin: SocketAddr,

    /// Unique producer ID; must stay the same across restarts [default: HOSTNAME:GRPC_PORT]
    #[arg(long, value_name = "NAME", default_value = "", value_parser = parse_id)]
    pub id: std::option::Option<String>,

    /// Directory for the epoch history, or `none` [default: /dev/shm]
    ///
    /// From it, its consumers know after a crash or a restart how much they missed. It must be in memory (tmpfs), and always
    /// the same for the same name; `none` keeps no record.
    #[arg(long, value_name = "DIR", default_value = "", value_parser = parse_state)]
    pub state: State,
}

/// What it keeps.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What it keeps")]
pub struct Keeping {
    /// Maximum size of the in-memory log
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "1GiB",
        value_parser = size(1 << 20..=usize::MAX)
    )]
    pub log_bytes: usize,

    /// Size at which a chunk is sealed
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "64KiB",
        hide_short_help = true,
        value_parser = size(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX)
    )]
    pub chunk_bytes: usize,

    /// Seal a chunk at this age. Higher values use less CPU, lower values reduce latency
    ///
    /// Tripled while the chunk holds less than 2 KiB.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = time(ms(1)..=TIME_MAX))]
    pub chunk_age: Duration,

    /// Maximum lag of a connected subscriber, in cookies. Beyond it, its oldest cookies are dropped
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "16000000",
        value_parser = count(1..=usize::MAX)
    )]
    pub queue_cookies: usize,

    /// How long to remember the position of a disconnected subscriber
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "60s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub subscriber_retention: Duration,

    /// Maximum bytes to resend to a subscriber that reconnects without a cursor, to cover data that was in flight
    ///
    /// Lower if the subscriber announced a smaller receive window.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "34MiB",
        hide_short_help = true,
        value_parser = size(0..=usize::MAX)
    )]
    pub rewind_bytes: usize,

    /// How long a stream may be silent before it sends a heartbeat
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        hide_short_help = true,
        value_parser = time(ms(10)..=HEARTBEAT_MAX)
    )]
    pub heartbeat: Duration,
}

/// What it grants others at most.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Limits")]
pub struct Granted {
    /// Maximum number of subscribers, including disconnected ones within --subscriber-retention
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "1024",
        hide_short_help = true,
        value_parser = count(CONNECTIONS)
    )]
    pub subscribers: usize,

    /// Maximum bytes in flight to all subscribers, in addition to the log
    ///
    /// Beyond it the slowest are cut off. At least 256 KiB and three chunks.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "256MiB",
        value_parser = size(0..=usize::MAX)
    )]
    pub in_flight_bytes: usize,

    /// Most HTTP connections at once
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "16384",
        value_parser = count(CONNECTIONS)
    )]
    pub http_connections: usize,

    /// Most gRPC connections at once
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "2048",
        value_parser = count(CONNECTIONS)
    )]
    pub grpc_connections: usize,

    /// Maximum concurrent HTTP connections per client address [default: --http-connections]
    ///
    /// IPv6 clients are counted per /64. Behind a load balancer, all connections share one address.
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "",
        hide_short_help = true,
        value_parser = optional(count(CONNECTIONS))
    )]
    pub http_connections_per_address: std::option::Option<usize>,

    /// Most gRPC connections at once from one address [default: half of --grpc-connections]
    ///
    /// Or from one IPv6 network of 64 bits.
    #[arg(
        long,
        group = RELOADED,
        value_name = "COUNT",
        default_value = "",
        hide_short_help = true,
        value_parser = optional(count(CONNECTIONS))
    )]
    pub grpc_connections_per_address: std::option::Option<usize>,

    /// Longest time an HTTP client may take to send the head of a request
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        hide_short_help = true,
        value_parser = time(ms(10)..=TIME_MAX)
    )]
    pub request_timeout: Duration,

    /// Idle timeout of HTTP connections; 1/16 of it while more than 80% of --http-connections are in use
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "75s",
        value_parser = time(ms(10)..=TIME_MAX)
    )]
    pub idle_timeout: Duration,

    /// Longest time an HTTP client may take to read its answers
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        hide_short_help = true,
        value_parser = time(ms(10)..=TIME_MAX)
    )]
    pub write_timeout: Duration,
}

/// How long stopping takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "How it stops")]
pub struct Stopping {
    /// How long to keep accepting requests after a shutdown signal. Set it longer than the load balancer takes to notice
    ///
    /// Meanwhile `/readyz` returns 503 and every response closes its connection.
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "0s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_delay: Duration,

    /// Maximum time to drain, counted from the end of --drain-delay
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_timeout: Duration,
}

impl Granted {
    /// What the edge grants its clients.
    #[must_use]
    pub fn http(&self) -> listen::Limits {
        listen::Limits {
            connections_max: self.http_connections,
            connections_per_address_max: self.http_connections_per_address,
            request_timeout: Some(self.request_timeout),
            idle_timeout: self.idle_timeout,
            write_timeout: Some(self.write_timeout),
        }
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn parse_id(text: &str) -> Result<Option<String>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    match ids::check_name(text) {
        Ok(()) => Ok(Some(text.to_owned())),
        Err(_) => Err("longer than 256 bytes, or with control characters"),
    }
}

fn parse_state(text: &str) -> Result<State, Infallible> {
    Ok(match text {
        "" => State::Default,
        "none" => State::Off,
        dir => State::Dir(dir.into()),
    })
}
