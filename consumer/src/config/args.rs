//! Definitions of all settings: name, help, default, parser and, if it can change at runtime, reload group.
//!
//! A change of any other setting requires a restart: buffers and tables are allocated at startup, and stored cookies
//! depend on their TTL.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use jiff::tz::TimeZone;
use proto::units::DspId;
use runtime::connect::credentials::{NatsTlsArgs, SecurityArgs};
use runtime::settings::{
    CONTENTS, CommonArgs, RELOADED, TIME_MAX, address, count, optional, size, time,
};

use super::{
    Config, ProducerUrl, StoreConfig,
    parse::{
        TTL_MIN, parse_dsp, parse_dsp_ttl, parse_name, parse_node, parse_prefix, parse_producer,
        parse_store, parse_time_zone,
    },
};
use crate::{maintenance_window::Window, store::mongodb, ttl::Ttls};

/// Upper bound of sizes in memory and on disk, to reject typos.
const BYTES_MAX: usize = 1 << 40;

/// Default of `--producer`.
pub(super) const DEFAULT_PRODUCER: &str = "http://127.0.0.1:7676";

const EXAMPLES: &str = "\
Examples:
  Read from all producers behind a host name and write to the local mongod:
    consumer --producer http://producers.example:7676 --store mongodb://127.0.0.1:27017

  Create a config file, and validate it after a change:
    consumer --producer http://producers.example:7676 --print-config > consumer.toml
    consumer --config consumer.toml --check-config";

/// Reads cookies (matches of a user id and a buyer uid) from producers and writes them to a local store
#[derive(Debug, Clone, Parser)]
#[command(name = "consumer", after_long_help = EXAMPLES)]
pub struct Args {
    /// Producers and the name of this consumer.
    #[command(flatten)]
    pub producers: ProducersArgs,
    #[command(flatten)]
    pub(super) security: SecurityArgs,
    /// Store, batches and DSPs.
    #[command(flatten)]
    pub storage: StorageArgs,
    /// Copies of another node.
    #[command(flatten)]
    pub copy: CopyArgs,
    /// TTLs and deduplication.
    #[command(flatten)]
    pub retention: RetentionArgs,
    /// MongoDB options.
    #[command(flatten)]
    pub mongodb: MongodbArgs,
    #[command(flatten)]
    pub(super) archive: ArchiveArgs,
    /// The port for bidders.
    #[command(flatten)]
    pub lookup: LookupArgs,
    /// Expiry and compaction windows.
    #[command(flatten)]
    pub maintenance: MaintenanceArgs,
    /// Admin port and shutdown.
    #[command(flatten)]
    pub process: ProcessArgs,
    /// Settings of every process.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Producers and the name of this consumer.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Producers and identity")]
pub struct ProducersArgs {
    /// Producer URLs (comma-separated)
    ///
    /// Host names are resolved every few seconds. The consumer connects to every address of each host name.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = DEFAULT_PRODUCER,
        value_parser = parse_producer
    )]
    pub producer: Vec<ProducerUrl>,

    /// Name with which this consumer subscribes to producers, unique among all consumers [default: hostname]
    #[arg(long, value_name = "NAME", default_value = "", value_parser = parse_name)]
    pub name: String,
}

/// Store, batches and DSPs.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Storage")]
pub struct StorageArgs {
    /// Store for cookies: embedded:DIR, mongodb://… or mongodb+srv://…
    #[arg(
        long,
        value_name = "STORE",
        hide_env_values = true,
        default_value = "embedded:./data",
        value_parser = parse_store
    )]
    pub store: StoreConfig,

    /// Time from the first cookie of a batch until the batch is written, if the store is idle
    ///
    /// A batch that reaches 5,000 cookies is written immediately. While the store is busy, a batch can grow to --batch-cookies.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "200ms",
        value_parser = time(Duration::from_millis(1)..=TIME_MAX)
    )]
    pub flush_interval: Duration,

    /// Maximum number of cookies per batch
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "100000",
        hide_short_help = true,
        value_parser = count(1..=10_000_000)
    )]
    pub batch_cookies: usize,

    /// Size of the receive buffer. When it is full, the consumer stops reading from producers
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "16MiB",
        hide_short_help = true,
        value_parser = size(64 << 10..=16 << 30)
    )]
    pub buffer_bytes: usize,

    /// Dead-letter file (JSON Lines) for cookies that the store permanently rejects
    #[arg(long, value_name = "FILE", default_value = "dead-letters.jsonl")]
    pub dead_letters: PathBuf,

    /// DSPs whose cookies are always accepted (comma-separated)
    #[arg(long, value_name = "DSP", value_delimiter = ',', value_parser = parse_dsp)]
    pub dsps: Vec<Option<DspId>>,

    /// Maximum number of accepted DSPs that are not in --dsps: those whose cookies arrive first. Cookies of all others are rejected
    #[arg(long, value_name = "COUNT", default_value = "512", value_parser = count(0..=100_000))]
    pub unlisted_dsps_max: usize,

    /// DSPs whose cookies are rejected (comma-separated). These DSPs do not count toward --unlisted-dsps-max
    #[arg(
        long,
        group = RELOADED,
        value_name = "DSP",
        value_delimiter = ',',
        value_parser = parse_dsp
    )]
    pub rejected_dsps: Vec<Option<DspId>>,
}

/// Copies of another node.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "New nodes")]
pub struct CopyArgs {
    /// Admin ports of other nodes, in order of preference, from which an empty store is filled (comma-separated)
    ///
    /// The consumer reads from the producers meanwhile. After a restart, it continues. A filled store is never filled again.
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = parse_node)]
    pub copy_from: Vec<Option<ProducerUrl>>,

    /// File with the bearer token for the nodes in --copy-from. If the file contains several tokens, only the first is used
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub copy_token_file: String,

    /// Maximum number of cookies copied per second
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "100000",
        value_parser = count(1..=100_000_000)
    )]
    pub copy_rows_per_second: usize,
}

/// TTLs and deduplication.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Retention and deduplication")]
pub struct RetentionArgs {
    /// Time to live of cookies (counted from their acceptance), and of the stored positions (cursors) of producers that no longer exist
    #[arg(
        long,
        value_name = "TIME",
        default_value = "14d",
        value_parser = time(TTL_MIN..=TIME_MAX)
    )]
    pub ttl: Duration,

    /// Time to live of a DSP's cookies, for example 17=7d,42=30d; overrides --ttl
    #[arg(long, value_name = "DSP=TIME", value_delimiter = ',', value_parser = parse_dsp_ttl)]
    pub dsp_ttl: Vec<(DspId, Duration)>,

    /// Lower bound for the times to live in producers' contracts; shorter times are raised to this bound
    ///
    /// If not set, the times to live in contracts are ignored.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "",
        value_parser = optional(time(TTL_MIN..=TIME_MAX))
    )]
    pub ttl_floor: std::option::Option<Duration>,

    /// Suppress a cookie if the same buyer uid was stored for its user and DSP within this interval; with 0s, every cookie is written
    ///
    /// A suppressed cookie does not extend the stored one, which may therefore expire early: by at most this interval, and at most
    /// half of its time to live.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1h",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub refresh_interval: Duration,

    /// Memory for tracking the cookies stored in the last --refresh-interval; each pair of user and DSP takes about 50 bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "256MiB",
        value_parser = size(64 << 10..=BYTES_MAX)
    )]
    pub refresh_bytes: usize,

    /// Memory for deletions, 40 bytes each. When it is full, the oldest deletions are evicted
    ///
    /// Cookies accepted before the newest evicted deletion are then rejected, so that no deleted cookie is stored again.
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "32MiB",
        hide_short_help = true,
        value_parser = size(4 << 10..=BYTES_MAX)
    )]
    pub deletion_bytes: usize,
}

/// MongoDB options.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "MongoDB")]
pub struct MongodbArgs {
    /// Prefix of MongoDB database names; a name is this prefix followed by a DSP id or by `cookiesync`
    #[arg(long, value_name = "PREFIX", default_value = "", value_parser = parse_prefix)]
    pub mongodb_prefix: String,
}

/// What a consumer reads from the archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ArchiveMode {
    /// What the producers in --producer no longer have
    #[default]
    Recover,
    /// Everything, and nothing from producers
    Follow,
}

/// Where to read what the streams did not deliver.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Archive")]
pub(super) struct ArchiveArgs {
    /// JetStream stream with an archive of the producers: URLs of the NATS servers, separated by commas, then the name of the stream,
    /// such as nats://USER:PASSWORD@nats-1:4222/COOKIES [default: none]
    ///
    /// Cookies that the producers no longer have are read from it. Requires a build with `--features consumer/archive`.
    #[arg(long, value_name = "URL", hide_env_values = true, default_value = "")]
    pub(super) archive: String,

    /// What is read from the archive
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub(super) archive_mode: ArchiveMode,

    /// Name of a JetStream stream on the same servers, in which this node reports what it has stored, for producers to which it has no
    /// stream [default: none]
    ///
    /// The reports are authenticated with the token in --token-file. Producers need the same setting.
    #[arg(long, value_name = "STREAM", default_value = "")]
    pub(super) node_reports: String,

    #[command(flatten)]
    pub(super) tls: NatsTlsArgs,
}

/// The port for bidders.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Lookups")]
pub struct LookupArgs {
    /// Address for lookups of bidders (HTTP/1.1 and gRPC). If it is not a loopback address, --lookup-token-file is required [default:
    /// none]
    #[arg(long, value_name = "ADDRESS", default_value = "", value_parser = optional(|text| Ok(address(text)?)))]
    pub lookup: std::option::Option<SocketAddr>,

    /// File with bearer tokens, one per line. If set, every lookup must present a token
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub(super) lookup_token_file: String,

    /// PEM file with the certificate of the lookup port, followed by its intermediate certificates. Enables TLS
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub(super) lookup_tls_cert: String,

    /// PEM file with the private key of --lookup-tls-cert
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub(super) lookup_tls_key: String,

    /// Memory for users that were looked up recently, with the embedded store; a user with five matches takes about 350 bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "128MiB",
        value_parser = size(64 << 10..=BYTES_MAX)
    )]
    pub lookup_cache: usize,
}

/// Expiry and compaction windows.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Maintenance windows")]
pub struct MaintenanceArgs {
    /// When to delete expired cookies: `never`, `always`, or hours such as 01:00-03:00
    #[arg(long, group = RELOADED, value_name = "WINDOW", default_value = "01:00-03:00")]
    pub expiry_window: Window,

    /// When to compact MongoDB collections: `never`, `always`, or hours such as 03:00-06:00
    #[arg(long, group = RELOADED, value_name = "WINDOW", default_value = "03:00-06:00")]
    pub compaction_window: Window,

    /// IANA time zone of the expiry and compaction windows, or `system` (the machine's zone)
    #[arg(
        long,
        group = RELOADED,
        value_name = "ZONE",
        default_value = "UTC",
        value_parser = parse_time_zone
    )]
    pub time_zone: TimeZone,
}

/// Admin port and shutdown.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Admin and shutdown")]
pub struct ProcessArgs {
    /// Address for the status page, /metrics, /healthz, /readyz and /v1/users/ID
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9091", value_parser = address)]
    pub admin: SocketAddr,

    /// File with bearer tokens, one per line. Enables GET /v1/cookies on the admin port, also for --copy-from of new nodes
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    pub cookies_token_file: String,

    /// Maximum time to drain (write the received cookies) after a shutdown signal
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_timeout: Duration,
}

impl StorageArgs {
    /// DSPs that are always accepted.
    pub fn dsps(&self) -> BTreeSet<DspId> {
        self.dsps.iter().copied().flatten().collect()
    }

    /// DSPs that are never accepted.
    pub fn rejected_dsps(&self) -> BTreeSet<DspId> {
        self.rejected_dsps.iter().copied().flatten().collect()
    }
}

impl RetentionArgs {
    /// TTLs of cookies. The maximum is also the TTL of cursors.
    pub(super) fn ttls(&self) -> Ttls {
        Ttls::new(self.ttl, self.dsp_ttl.iter().copied().collect()).with_floor(self.ttl_floor)
    }
}

impl Config {
    /// Options of the MongoDB store with this connection string.
    pub(crate) fn mongodb_store(&self, uri: &str) -> mongodb::Options {
        mongodb::Options {
            uri: uri.to_owned(),
            name: self.args.producers.name.clone(),
            prefix: self.args.mongodb.mongodb_prefix.clone(),
            ttls: self.ttls.clone(),
        }
    }
}
