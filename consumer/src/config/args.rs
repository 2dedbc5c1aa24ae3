//! The settings as they are written, and what becomes of a change of each.

use std::{fmt, path::PathBuf};

use clap::Parser;
use runtime::settings::{Change, CommonArgs, instead::InsteadArgs};

use super::security::SecurityArgs;

/// What becomes of changes; every setting is here once.
pub(super) const CHANGES: &[(&str, Change)] = &[
    ("producer", Change::Restart),
    // A window is fixed when its stream connects.
    ("producers_expected", Change::Restart),
    ("name", Change::Restart),
    ("tls_ca", Change::Contents),
    ("tls_cert", Change::Contents),
    ("tls_key", Change::Contents),
    ("tls_server_name", Change::Restart),
    ("token_file", Change::Contents),
    ("store", Change::Restart),
    // Buffers and tables are laid out at the start.
    ("flush_interval", Change::Restart),
    ("batch_cookies", Change::Restart),
    ("buffer_bytes", Change::Restart),
    ("dead_letters", Change::Restart),
    ("dead_letter_bytes", Change::Restart),
    ("set_aside", Change::Restart),
    ("set_aside_bytes", Change::Restart),
    ("dsps", Change::Restart),
    ("dsps_max", Change::Restart),
    ("dsps_refused", Change::Reloaded),
    // What is stored already depends on them.
    ("ttl", Change::Restart),
    ("dsp_ttl", Change::Restart),
    ("refresh_interval", Change::Restart),
    ("refresh_bytes", Change::Restart),
    ("mongodb_prefix", Change::Restart),
    ("mongodb_writers", Change::Restart),
    ("expiry_window", Change::Reloaded),
    ("compaction_window", Change::Reloaded),
    ("time_zone", Change::Reloaded),
    ("admin", Change::Restart),
    ("drain_timeout", Change::Reloaded),
];

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
///
/// Each setting is a flag, an environment variable, and a key of the TOML file (the flag's name with
/// underscores); the flag wins, then the environment, then the file.
#[derive(Debug, Clone, Parser)]
#[command(name = "consumer", version = runtime::VERSION, after_help = "--help tells more of each, and shows all.", after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    pub(super) reading: ReadingArgs,
    #[command(flatten)]
    pub(super) security: SecurityArgs,
    #[command(flatten)]
    pub(super) storing: StoringArgs,
    #[command(flatten)]
    pub(super) keeping: KeepingArgs,
    #[command(flatten)]
    pub(super) mongodb: MongodbArgs,
    #[command(flatten)]
    pub(super) night: NightArgs,
    #[command(flatten)]
    pub(super) running: RunningArgs,
    #[command(flatten)]
    pub(super) common: CommonArgs,
    #[command(flatten)]
    instead: InsteadArgs,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Whom it reads from, and who it is")]
pub(super) struct ReadingArgs {
    /// Producers to read from, repeatable or comma-separated
    ///
    /// A host name stands for all its addresses, which are looked up again and again.
    #[arg(
        long,
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7676"
    )]
    pub(super) producer: Vec<String>,

    /// Most producers there will be: they share 96 MiB of receive windows [default: as many as are found]
    ///
    /// Each window is 1 to 32 MiB, fixed when its stream connects, so streams that are open keep theirs when more producers
    /// are found than were expected.
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) producers_expected: String,

    /// Name of this consumer's queue on every producer, no other consumer's [default: the host name]
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) name: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Where cookies go")]
pub(super) struct StoringArgs {
    /// Where cookies go: embedded:DIR, mongodb://…, mongodb+srv://…, or none to count and discard
    #[arg(
        long,
        value_name = "STORE",
        hide_env_values = true,
        default_value = "embedded:./data"
    )]
    pub(super) store: Secret,

    /// How long a batch is collected, at most
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    pub(super) flush_interval: String,

    /// Most cookies of one batch
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "100000",
        hide_short_help = true
    )]
    pub(super) batch_cookies: String,

    /// Most bytes received but not yet part of a batch; when they are reached, reading stops
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "16MiB",
        hide_short_help = true
    )]
    pub(super) buffer_bytes: String,

    /// File for cookies that the store refuses for ever, one JSON object a line
    #[arg(long, value_name = "FILE", default_value = "dead-letters.jsonl")]
    pub(super) dead_letters: PathBuf,

    /// Most bytes of that file and the one before it, FILE.1, together
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "16MiB",
        hide_short_help = true
    )]
    pub(super) dead_letter_bytes: String,

    /// Folder for cookies that MongoDB does not take of one DSP alone, until it does [default: the file of --dead-letters and
    /// `.aside`]
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub(super) set_aside: String,

    /// Most bytes of that folder: one DSP alone gets half of it, all new ones together as much, and what has no room becomes a dead letter
    #[arg(
        long,
        value_name = "BYTES",
        default_value = "256MiB",
        hide_short_help = true
    )]
    pub(super) set_aside_bytes: String,

    /// DSPs that always have a place in the store, repeatable or comma-separated
    #[arg(long, value_name = "DSP", value_delimiter = ',')]
    pub(super) dsps: Vec<String>,

    /// Most other DSPs that get a place by being seen, until their cookies have expired; cookies of more are refused
    #[arg(long, value_name = "COUNT", default_value = "512")]
    pub(super) dsps_max: String,

    /// DSPs whose cookies are refused, repeatable or comma-separated; a place that one has by being seen is free at once
    #[arg(long, value_name = "DSP", value_delimiter = ',')]
    pub(super) dsps_refused: Vec<String>,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "How long cookies are kept")]
pub(super) struct KeepingArgs {
    /// How long a cookie is kept after it was accepted, and the cursor of a producer that is gone
    #[arg(long, value_name = "TIME", default_value = "14d")]
    pub(super) ttl: String,

    /// The same for single DSPs, repeatable or comma-separated: 17=7d,42=30d
    #[arg(long, value_name = "DSP=TIME", value_delimiter = ',')]
    pub(super) dsp_ttl: Vec<String>,

    /// How long a cookie that repeats what is stored is not written again; 0s writes every cookie
    ///
    /// It repeats when the buyer uid is the one stored for its user and DSP. Such a cookie may expire that much early.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    pub(super) refresh_interval: String,

    /// Memory for knowing what repeats: 26 bytes for each user and DSP; where it runs short the older are forgotten
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(super) refresh_bytes: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "MongoDB")]
pub(super) struct MongodbArgs {
    /// What the names of MongoDB databases begin with, before the DSP's number or `cookiesync`
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) mongodb_prefix: String,

    /// Most MongoDB collections written at once
    #[arg(long, value_name = "COUNT", default_value = "4")]
    pub(super) mongodb_writers: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "At night")]
pub(super) struct NightArgs {
    /// When expired cookies are deleted: hours like 01:00-03:00, never or always
    #[arg(long, value_name = "WINDOW", default_value = "01:00-03:00")]
    pub(super) expiry_window: String,

    /// When MongoDB's collections are compacted: hours like 03:00-06:00, never or always
    #[arg(long, value_name = "WINDOW", default_value = "03:00-06:00")]
    pub(super) compaction_window: String,

    /// IANA time zone of the windows, or system
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(super) time_zone: String,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "How it is watched and stopped")]
pub(super) struct RunningArgs {
    /// Address for the status page, /metrics, /healthz, /readyz and /v1/users/ID
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9091")]
    pub(super) admin: String,

    /// Longest time to finish after a signal
    #[arg(long, value_name = "TIME", default_value = "10s")]
    pub(super) drain_timeout: String,
}

/// A text that may hold credentials.
#[derive(Clone)]
pub(super) struct Secret(pub(super) String);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
