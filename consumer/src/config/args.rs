//! The settings, a field for each: what it is called, what it takes, its default, and by its group what becomes of a change.
//!
//! What is in no group needs a restart: buffers, tables and windows are laid out at the start, and what is stored already depends
//! on how long it is kept.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use jiff::tz::TimeZone;
use runtime::settings::{CommonArgs, RELOADED, TIME_MAX, address, count, optional, size, time};

use super::{
    ProducerUrl, StoreConfig,
    parse::{
        TTL_MIN, parse_dsp, parse_dsp_ttl, parse_name, parse_prefix, parse_producer, parse_store,
        parse_time_zone,
    },
    security::SecurityArgs,
};
use crate::{maintenance_window::Window, store::mongodb::ExpiryMode, ttl::Ttls};

/// Far more bytes than anybody uses, for what is held in memory or on disk.
const BYTES_MAX: usize = 1 << 40;

const EXAMPLES: &str = "\
Examples:
  Read from all producers behind a name, and write into the mongod of this machine:
    consumer --producer http://producers.example:7676 --store mongodb://127.0.0.1:27017

  Write the settings of a file that can be used from now on, and check it after a change:
    consumer --producer http://producers.example:7676 --print-config > consumer.toml
    consumer --config consumer.toml --check-config

  Change what is logged while it runs (with --debug-endpoints):
    curl -X PUT -d info,consumer=debug http://127.0.0.1:9091/log-filter";

/// Reads cookies from producers and keeps one local store current.
#[derive(Debug, Clone, Parser)]
#[command(name = "consumer", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) producers: ProducersArgs,
    #[command(flatten)]
    pub(super) security: SecurityArgs,
    #[command(flatten)]
    pub(super) storage: StorageArgs,
    #[command(flatten)]
    pub(super) retention: RetentionArgs,
    #[command(flatten)]
    pub(super) mongodb: MongodbArgs,
    #[command(flatten)]
    pub(super) maintenance: MaintenanceArgs,
    #[command(flatten)]
    pub(super) process: ProcessArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
}

/// Whom a consumer reads from, and who it is.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Whom it reads from, and who it is")]
pub struct ProducersArgs {
    /// Producer URLs (repeatable or comma-separated)
    ///
    /// A host name is re-resolved every few seconds, and the consumer connects to every address it resolves to.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7676",
        value_parser = parse_producer
    )]
    pub producer: Vec<ProducerUrl>,

    /// Expected number of producers, which share 96 MiB of receive windows [default: number discovered]
    ///
    /// Each window is 1 to 32 MiB, fixed when its stream connects, so streams that are open keep theirs when more producers
    /// are found than were expected.
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "",
        value_parser = optional(count(1..=u32::MAX as usize))
    )]
    pub producers_expected: std::option::Option<usize>,

    /// Unique subscriber name of this consumer on all producers [default: hostname]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        value_parser = parse_name
    )]
    pub name: String,
}

/// Where cookies go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where cookies go")]
pub struct StorageArgs {
    /// Where cookies go: embedded:DIR, mongodb://…, mongodb+srv://…, or none to count and discard
    #[arg(
        long,
        value_name = "STORE",
        hide_env_values = true,
        default_value = "embedded:./data",
        value_parser = parse_store
    )]
    pub store: StoreConfig,

    /// Maximum time to collect a batch before writing it
    #[arg(
        long,
        value_name = "TIME",
        default_value = "200ms",
        value_parser = time(Duration::from_millis(1)..=TIME_MAX)
    )]
    pub flush_interval: Duration,

    /// Most cookies of one batch
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

    /// Maximum total size of the dead-letter file and its rotated copy, FILE.1
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "16MiB",
        hide_short_help = true,
        value_parser = size(64 << 10..=BYTES_MAX)
    )]
    pub dead_letter_bytes: usize,

    /// DSPs that always have a slot in the store, repeatable or comma-separated
    #[arg(long, value_name = "DSP", value_delimiter = ',', value_parser = parse_dsp)]
    pub dsps: Vec<Option<u32>>,

    /// Maximum number of other DSPs that get a slot, in the order of their first cookies; cookies of more are refused
    #[arg(long, value_name = "COUNT", default_value = "512", value_parser = count(0..=100_000))]
    pub unlisted_dsps_max: usize,

    /// DSPs whose cookies are refused, repeatable or comma-separated; the slot of one that is not listed in --dsps is free at once
    #[arg(
        long,
        group = RELOADED,
        value_name = "DSP",
        value_delimiter = ',',
        value_parser = parse_dsp
    )]
    pub rejected_dsps: Vec<Option<u32>>,
}

/// How long cookies are kept.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "How long cookies are kept")]
pub struct RetentionArgs {
    /// Time to live of cookies, counted from acceptance, and of the cursors of producers that no longer exist
    #[arg(
        long,
        value_name = "TIME",
        default_value = "14d",
        value_parser = time(TTL_MIN..=TIME_MAX)
    )]
    pub ttl: Duration,

    /// The same for single DSPs, repeatable or comma-separated: 17=7d,42=30d
    #[arg(long, value_name = "DSP=TIME", value_delimiter = ',', value_parser = parse_dsp_ttl)]
    pub dsp_ttl: Vec<(u32, Duration)>,

    /// Do not rewrite a cookie that was stored with the same buyer uid within this interval; 0s writes every cookie
    ///
    /// A suppressed cookie may expire up to this much early.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1h",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub refresh_interval: Duration,

    /// Memory for duplicate detection, 26 bytes per (user, DSP) pair. When it is full, the oldest entries are evicted
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "256MiB",
        value_parser = size(64 << 10..=BYTES_MAX)
    )]
    pub refresh_bytes: usize,
}

/// What MongoDB is asked for.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "MongoDB")]
pub struct MongodbArgs {
    /// Prefix of MongoDB database names, before the DSP id or `cookiesync`
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        value_parser = parse_prefix
    )]
    pub mongodb_prefix: String,

    /// Most MongoDB collections written at once
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = count(1..=64))]
    pub mongodb_writers: usize,
}

/// What is done at night.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "At night")]
pub struct MaintenanceArgs {
    /// When expired cookies are deleted: hours like 01:00-03:00, never or always
    #[arg(long, group = RELOADED, value_name = "WINDOW", default_value = "01:00-03:00")]
    pub expiry_window: Window,

    /// How to delete expired cookies from MongoDB: `sweep` scans all documents once per expiry window, `index` uses a TTL index on `t`
    ///
    /// Of several consumers that share a server, the one that maintains it decides. Collections change over in the expiry window.
    /// With the window `always`, an index deletes within minutes, a sweep once a day.
    #[arg(long, value_name = "MODE", default_value_t, hide_short_help = true)]
    pub expiry: ExpiryMode,

    /// When MongoDB's collections are compacted: hours like 03:00-06:00, never or always
    #[arg(long, group = RELOADED, value_name = "WINDOW", default_value = "03:00-06:00")]
    pub compaction_window: Window,

    /// IANA time zone of the windows, or system
    #[arg(
        long,
        group = RELOADED,
        value_name = "ZONE",
        default_value = "UTC",
        value_parser = parse_time_zone
    )]
    pub time_zone: TimeZone,
}

/// How it is watched and stopped.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "How it is watched and stopped")]
pub struct ProcessArgs {
    /// Address for the status page, /metrics, /healthz, /readyz and /v1/users/ID
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9091", value_parser = address)]
    pub admin: SocketAddr,

    /// Longest time to finish after a signal
    #[arg(
        long,
        group = RELOADED,
        value_name = "TIME",
        default_value = "10s",
        value_parser = time(Duration::ZERO..=TIME_MAX)
    )]
    pub drain_timeout: Duration,
}

impl ProducersArgs {
    /// At least so many producers share what is kept for receiving; more do when more are found.
    #[must_use]
    pub fn producers_expected(&self) -> usize {
        // Each name is looked up in its own time, and has at least one address.
        self.producers_expected.unwrap_or(self.producer.len())
    }
}

impl StorageArgs {
    /// DSPs that always have a slot in the store.
    #[must_use]
    pub fn dsps(&self) -> BTreeSet<u32> {
        self.dsps.iter().copied().flatten().collect()
    }

    /// DSPs that get none.
    #[must_use]
    pub fn rejected_dsps(&self) -> BTreeSet<u32> {
        self.rejected_dsps.iter().copied().flatten().collect()
    }
}

impl RetentionArgs {
    /// How long a cookie is kept after it was accepted; the longest is also how long an untouched cursor is.
    #[must_use]
    pub fn ttls(&self) -> Ttls {
        Ttls::new(self.ttl, self.dsp_ttl.iter().copied().collect())
    }
}
