//! The settings of a producer: flags, `PRODUCER_…` environment variables and an optional TOML file.

mod args;
mod check;
mod dsps;

use std::{ffi::OsString, net::SocketAddr, time::Duration};

use runtime::{
    listen::Limits,
    settings::{self, Common},
};

pub use self::args::Args;
use crate::{
    edge::{dsps::Shown, request::IdLimits},
    epoch_history::State,
    security::Security,
};

/// The checked settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Address of the edge.
    pub http: SocketAddr,
    /// Address of the streams.
    pub grpc: SocketAddr,
    /// Address of the admin port.
    pub admin: SocketAddr,
    /// Name of this producer; `None` for host name and gRPC port.
    pub id: Option<String>,
    /// Where the record of this producer's lives is.
    pub state: State,
    /// Bound of the log.
    pub log_bytes_max: usize,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Longest wait of a cookie in an open chunk.
    pub chunk_age: Duration,
    /// Bound of each subscriber's queue.
    pub queue_cookies_max: u64,
    /// How long a disconnected subscriber's queue is kept.
    pub subscriber_retention: Duration,
    /// Most subscribers.
    pub subscribers_max: usize,
    /// How far back a subscriber without a cursor resumes.
    pub rewind_bytes: usize,
    /// Most bytes that the connections of subscribers may hold, each stream counted in full.
    pub pinned_bytes_max: usize,
    /// Time between heartbeats of a silent stream.
    pub heartbeat: Duration,
    /// Longest ids.
    pub ids: IdLimits,
    /// DSPs that are known.
    pub dsps: Shown,
    /// What the edge grants its clients.
    pub http_limits: Limits,
    /// Most gRPC connections.
    pub grpc_connections_max: usize,
    /// Most gRPC connections from one address.
    pub grpc_connections_per_address_max: Option<usize>,
    /// Who may read the streams.
    pub security: Security,
    /// How long stopping takes.
    pub drain: Drain,
    /// What every process has.
    pub common: Common,
}

/// How long stopping takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// From the signal to the drain.
    pub delay: Duration,
    /// Deadline of the drain.
    pub timeout: Duration,
}

impl Config {
    /// Reads the settings of a program started with `arguments`, its own name first.
    ///
    /// # Errors
    /// With all mistakes at once, ready to be printed; also for `--help` and `--version`.
    pub fn load(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        settings::load::<Args>(arguments).map(|loaded| loaded.config)
    }
}

#[cfg(test)]
mod tests;
