//! The settings of a producer: flags, `PRODUCER_…` environment variables and an optional TOML file.

mod dsps;

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use cookiesync::{
    limits::{self, BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
    process::{
        listen::Limits,
        settings::{self, Mistakes, address, number, optional_number, size, time, time_within},
    },
};

use self::dsps::DspsArgs;
use crate::{
    edge::{dsps::Shown, request::IdLimits},
    lives::State,
    security::{Security, SecurityArgs},
    server::SEND_BUFFER_BYTES,
};

/// Takes sync requests over HTTP and streams their cookies to every exchange node.
///
/// Each setting is a flag, an environment variable, and a key of the TOML file (the flag's name with
/// underscores); the flag wins, then the environment, then the file.
#[derive(Debug, Clone, Parser)]
#[command(name = "producer", version)]
pub struct Args {
    /// TOML file with settings
    #[arg(long, value_name = "FILE", env = "PRODUCER_CONFIG")]
    config: Option<PathBuf>,

    /// Address for sync requests (HTTP/1.1)
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "PRODUCER_HTTP",
        default_value = "0.0.0.0:8080"
    )]
    http: String,

    /// Address for subscribers (gRPC)
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "PRODUCER_GRPC",
        default_value = "0.0.0.0:7676"
    )]
    grpc: String,

    /// Address for the status page, /metrics, /healthz and /readyz
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "PRODUCER_ADMIN",
        default_value = "127.0.0.1:9090"
    )]
    admin: String,

    /// Name of this producer, the same across restarts and no other producer's [default: host name and
    /// gRPC port]
    #[arg(
        long,
        value_name = "NAME",
        env = "PRODUCER_ID",
        default_value = "",
        hide_default_value = true
    )]
    id: String,

    /// Folder for the record of how far this producer got, by which its consumers know after a crash or a restart how
    /// much they missed; best in memory, and always the same for the same name. `none` keeps no record [default:
    /// /dev/shm]
    #[arg(
        long,
        value_name = "DIR",
        env = "PRODUCER_STATE",
        default_value = "",
        hide_default_value = true
    )]
    state: String,

    /// Most bytes of cookies held for subscribers that are behind
    #[arg(
        long,
        value_name = "BYTES",
        env = "PRODUCER_LOG_BYTES",
        default_value = "1GiB"
    )]
    log_bytes: String,

    /// Size at which a chunk is sealed, 4KiB to 1MiB
    #[arg(
        long,
        value_name = "BYTES",
        env = "PRODUCER_CHUNK_BYTES",
        default_value = "64KiB"
    )]
    chunk_bytes: String,

    /// Age at which a chunk is sealed, three times that while it holds only few cookies: longer means less CPU,
    /// shorter means less delay
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_CHUNK_AGE",
        default_value = "10ms"
    )]
    chunk_age: String,

    /// Most cookies a subscriber may be behind before its oldest are dropped
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_QUEUE_COOKIES",
        default_value = "16000000"
    )]
    queue_cookies: String,

    /// How long the queue of a disconnected subscriber is kept
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_SUBSCRIBER_RETENTION",
        default_value = "60s"
    )]
    subscriber_retention: String,

    /// Most subscribers, connected or remembered
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_SUBSCRIBERS",
        default_value = "1024"
    )]
    subscribers: String,

    /// How much a subscriber that comes back without a cursor gets again: what may have been on its way
    #[arg(
        long,
        value_name = "BYTES",
        env = "PRODUCER_REWIND_BYTES",
        default_value = "34MiB"
    )]
    rewind_bytes: String,

    /// Most bytes that the connections of subscribers may hold, beside the log, before the worst are cut off: at least
    /// 256 KiB and two chunks
    #[arg(
        long,
        value_name = "BYTES",
        env = "PRODUCER_PINNED_BYTES",
        default_value = "256MiB"
    )]
    pinned_bytes: String,

    /// How long a stream is silent before it says that it lives, at most 10s
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_HEARTBEAT",
        default_value = "1s"
    )]
    heartbeat: String,

    /// Longest user id accepted, in bytes, at most 64
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_USER_ID_BYTES",
        default_value = "64"
    )]
    user_id_bytes: String,

    /// Longest buyer uid accepted, in bytes after percent-decoding, at most 256
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_BUYER_UID_BYTES",
        default_value = "256"
    )]
    buyer_uid_bytes: String,

    #[command(flatten)]
    dsps: DspsArgs,

    /// Most HTTP connections at once
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_HTTP_CONNECTIONS",
        default_value = "16384"
    )]
    http_connections: String,

    /// Most gRPC connections at once
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_GRPC_CONNECTIONS",
        default_value = "2048"
    )]
    grpc_connections: String,

    /// Most HTTP connections at once from one address, or one IPv6 network of 64 bits; a load balancer's
    /// are all from one [default: no limit but the one above]
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_HTTP_CONNECTIONS_PER_ADDRESS",
        default_value = "",
        hide_default_value = true
    )]
    http_connections_per_address: String,

    /// Most gRPC connections at once from one address, or one IPv6 network of 64 bits
    #[arg(
        long,
        value_name = "COUNT",
        env = "PRODUCER_GRPC_CONNECTIONS_PER_ADDRESS",
        default_value = "1024"
    )]
    grpc_connections_per_address: String,

    #[command(flatten)]
    security: SecurityArgs,

    /// Longest time an HTTP client may take to send the head of a request
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_REQUEST_TIMEOUT",
        default_value = "10s"
    )]
    request_timeout: String,

    /// Longest time an HTTP connection may be idle
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_IDLE_TIMEOUT",
        default_value = "75s"
    )]
    idle_timeout: String,

    /// Longest time an HTTP client may take to read its answers
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_WRITE_TIMEOUT",
        default_value = "10s"
    )]
    write_timeout: String,

    /// How long a producer that was told to stop takes requests on, while `/readyz` already says 503 and answers close
    /// their connections: longer than load balancers need to see it
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_DRAIN_DELAY",
        default_value = "0s"
    )]
    drain_delay: String,

    /// Longest time to finish after a signal, and after the delay
    #[arg(
        long,
        value_name = "TIME",
        env = "PRODUCER_DRAIN_TIMEOUT",
        default_value = "10s"
    )]
    drain_timeout: String,
}

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
    /// DSPs with metrics of their own.
    pub dsps: Shown,
    /// What the edge grants its clients.
    pub http_limits: Limits,
    /// Most gRPC connections.
    pub grpc_connections_max: usize,
    /// Most gRPC connections from one address.
    pub grpc_connections_per_address_max: Option<usize>,
    /// Who may read the streams.
    pub security: Security,
    /// From the signal to the drain.
    pub drain_delay: Duration,
    /// Deadline of the drain.
    pub drain_timeout: Duration,
}

impl Config {
    /// Reads the settings of a program started with `arguments`, its own name first.
    ///
    /// # Errors
    /// With all mistakes at once, ready to be printed; also for `--help` and `--version`.
    pub fn load(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        settings::load(arguments, Args::check)
    }
}

impl Args {
    /// Checks all settings.
    ///
    /// # Errors
    /// All mistakes.
    pub fn check(&self) -> Result<Config, Mistakes> {
        let mut mistakes = Mistakes::default();
        let m = &mut mistakes;
        let chunk_sizes = (limits::CHUNK_BYTES_MIN, limits::CHUNK_BYTES_MAX);
        let ms = Duration::from_millis;
        let config = Config {
            http: address(m, "--http", &self.http),
            grpc: address(m, "--grpc", &self.grpc),
            admin: address(m, "--admin", &self.admin),
            id: (!self.id.is_empty()).then(|| self.id.clone()),
            state: match self.state.as_str() {
                "" => State::Default,
                "none" => State::Off,
                folder => State::Folder(folder.into()),
            },
            log_bytes_max: size(m, "--log-bytes", &self.log_bytes, (1 << 20, usize::MAX)),
            chunk_bytes: size(m, "--chunk-bytes", &self.chunk_bytes, chunk_sizes),
            chunk_age: time(m, "--chunk-age", &self.chunk_age, ms(1)),
            queue_cookies_max: number(m, "--queue-cookies", &self.queue_cookies, (1, u64::MAX)),
            subscriber_retention: time(
                m,
                "--subscriber-retention",
                &self.subscriber_retention,
                Duration::ZERO,
            ),
            subscribers_max: number(m, "--subscribers", &self.subscribers, (1, 1_000_000)),
            rewind_bytes: size(m, "--rewind-bytes", &self.rewind_bytes, (0, usize::MAX)),
            pinned_bytes_max: size(m, "--pinned-bytes", &self.pinned_bytes, (0, usize::MAX)),
            heartbeat: time_within(
                m,
                "--heartbeat",
                &self.heartbeat,
                (ms(10), limits::HEARTBEAT_MAX),
            ),
            ids: IdLimits {
                user_id_bytes_max: number(
                    m,
                    "--user-id-bytes",
                    &self.user_id_bytes,
                    (1, USER_ID_BYTES_MAX),
                ),
                buyer_uid_bytes_max: number(
                    m,
                    "--buyer-uid-bytes",
                    &self.buyer_uid_bytes,
                    (1, BUYER_UID_BYTES_MAX),
                ),
            },
            dsps: self.dsps.check(m),
            http_limits: Limits {
                connections_max: number(
                    m,
                    "--http-connections",
                    &self.http_connections,
                    (1, 1_000_000),
                ),
                connections_per_address_max: optional_number(
                    m,
                    "--http-connections-per-address",
                    &self.http_connections_per_address,
                    (1, 1_000_000),
                ),
                request_timeout: Some(time(m, "--request-timeout", &self.request_timeout, ms(10))),
                idle_timeout: time(m, "--idle-timeout", &self.idle_timeout, ms(10)),
                write_timeout: Some(time(m, "--write-timeout", &self.write_timeout, ms(10))),
            },
            grpc_connections_max: number(
                m,
                "--grpc-connections",
                &self.grpc_connections,
                (1, 1_000_000),
            ),
            grpc_connections_per_address_max: optional_number(
                m,
                "--grpc-connections-per-address",
                &self.grpc_connections_per_address,
                (1, 1_000_000),
            ),
            security: self.security.check(m),
            drain_delay: time(m, "--drain-delay", &self.drain_delay, Duration::ZERO),
            drain_timeout: time(m, "--drain-timeout", &self.drain_timeout, Duration::ZERO),
        };
        let held_by_one = SEND_BUFFER_BYTES + 2 * config.chunk_bytes;
        if config.pinned_bytes_max < held_by_one {
            mistakes.add(format!(
                "--pinned-bytes: less than one stalled stream may hold, {held_by_one} bytes with these chunks"
            ));
        }
        if self.id.len() > limits::SUBSCRIBER_NAME_BYTES_MAX
            || self.id.chars().any(char::is_control)
        {
            mistakes.add("--id: longer than 256 bytes, or with control characters");
        }
        mistakes.or(config)
    }
}

#[cfg(test)]
mod tests;
