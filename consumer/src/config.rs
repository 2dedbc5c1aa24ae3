//! The settings of a consumer: flags, `CONSUMER_…` environment variables and an optional TOML file.
//!
//! All mistakes are collected and reported together, before anything is bound. Nothing else in this crate reads
//! the environment. No text made here contains the credentials of a store.

mod parse;
mod security;

use std::{
    collections::BTreeMap, ffi::OsString, fmt, net::SocketAddr, path::PathBuf, time::Duration,
};

use clap::Parser;
use cookiesync::{
    client::security::Security,
    process::settings::{self, Mistakes, address, number, size, time},
};
use jiff::tz::TimeZone;

use crate::{store::mongodb::Layout, ttl::Ttls, window::Window};
use parse::{
    parse_dsp_ttl, parse_name, parse_prefix, parse_producer, parse_store, parse_time_zone,
};
use security::SecurityArgs;

/// Reads cookies from producers and keeps one local store current.
///
/// Each setting is a flag, an environment variable, and a key of the TOML file (the flag's name with
/// underscores); the flag wins, then the environment, then the file.
#[derive(Debug, Clone, Parser)]
#[command(name = "consumer", version)]
pub struct Args {
    /// TOML file with settings
    #[arg(long, value_name = "FILE", env = "CONSUMER_CONFIG")]
    config: Option<PathBuf>,

    /// Producers to read from, repeatable or comma-separated; a host name stands for all its addresses, which
    /// are looked up again and again
    #[arg(
        long,
        value_name = "URL",
        env = "CONSUMER_PRODUCER",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7676"
    )]
    producer: Vec<String>,

    #[command(flatten)]
    security: SecurityArgs,

    /// Name of this consumer's queue on every producer, no other consumer's [default: the host name]
    #[arg(
        long,
        value_name = "NAME",
        env = "CONSUMER_NAME",
        default_value = "",
        hide_default_value = true
    )]
    name: String,

    /// Where cookies go: embedded:DIR, mongodb://…, mongodb+srv://…, or none to count and discard
    #[arg(
        long,
        value_name = "STORE",
        env = "CONSUMER_STORE",
        hide_env_values = true,
        default_value = "embedded:./data"
    )]
    store: Secret,

    /// How long a batch is collected, at most
    #[arg(
        long,
        value_name = "TIME",
        env = "CONSUMER_FLUSH_INTERVAL",
        default_value = "200ms"
    )]
    flush_interval: String,

    /// Address for the status page, /metrics, /healthz, /readyz and /v1/users/ID
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "CONSUMER_ADMIN",
        default_value = "127.0.0.1:9091"
    )]
    admin: String,

    /// Most cookies of one batch
    #[arg(
        long,
        value_name = "COUNT",
        env = "CONSUMER_BATCH_COOKIES",
        default_value = "100000"
    )]
    batch_cookies: String,

    /// Most bytes received but not yet part of a batch; when they are reached, reading stops
    #[arg(
        long,
        value_name = "BYTES",
        env = "CONSUMER_BUFFER_BYTES",
        default_value = "16MiB"
    )]
    buffer_bytes: String,

    /// How long a cookie is kept after it was accepted, and the cursor of a producer that is gone
    #[arg(long, value_name = "TIME", env = "CONSUMER_TTL", default_value = "14d")]
    ttl: String,

    /// The same for single DSPs, repeatable or comma-separated: 17=7d,42=30d
    #[arg(
        long,
        value_name = "DSP=TIME",
        env = "CONSUMER_DSP_TTL",
        value_delimiter = ','
    )]
    dsp_ttl: Vec<String>,

    /// How long a cookie that repeats the buyer uid stored for its user and DSP is not written again; it may
    /// expire that much early; 0s writes every cookie
    #[arg(
        long,
        value_name = "TIME",
        env = "CONSUMER_REFRESH_INTERVAL",
        default_value = "1h"
    )]
    refresh_interval: String,

    /// Memory for knowing what repeats: 26 bytes for each user and DSP; the oldest are forgotten when it is full
    #[arg(
        long,
        value_name = "BYTES",
        env = "CONSUMER_REFRESH_BYTES",
        default_value = "256MiB"
    )]
    refresh_bytes: String,

    /// File for cookies that the store refuses for ever, one JSON object a line
    #[arg(
        long,
        value_name = "FILE",
        env = "CONSUMER_DEAD_LETTERS",
        default_value = "dead-letters.jsonl"
    )]
    dead_letters: PathBuf,

    /// Most bytes of that file and the one before it, FILE.1, together
    #[arg(
        long,
        value_name = "BYTES",
        env = "CONSUMER_DEAD_LETTER_BYTES",
        default_value = "16MiB"
    )]
    dead_letter_bytes: String,

    /// What the names of MongoDB databases begin with, before the DSP's number or `cookiesync`
    #[arg(
        long,
        value_name = "PREFIX",
        env = "CONSUMER_MONGODB_PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    mongodb_prefix: String,

    /// Collections of a DSP's MongoDB database: one (`cookies`), or split256 (user id modulo 256, in hex)
    #[arg(
        long,
        value_name = "LAYOUT",
        env = "CONSUMER_MONGODB_LAYOUT",
        default_value = "one"
    )]
    mongodb_layout: String,

    /// Most MongoDB collections written at once
    #[arg(
        long,
        value_name = "COUNT",
        env = "CONSUMER_MONGODB_WRITERS",
        default_value = "4"
    )]
    mongodb_writers: String,

    /// When expired cookies are deleted: hours like 01:00-03:00, never or always
    #[arg(
        long,
        value_name = "WINDOW",
        env = "CONSUMER_EXPIRY_WINDOW",
        default_value = "01:00-03:00"
    )]
    expiry_window: String,

    /// When MongoDB's collections are compacted: hours like 03:00-06:00, never or always
    #[arg(
        long,
        value_name = "WINDOW",
        env = "CONSUMER_COMPACTION_WINDOW",
        default_value = "03:00-06:00"
    )]
    compaction_window: String,

    /// IANA time zone of the windows, or system
    #[arg(
        long,
        value_name = "ZONE",
        env = "CONSUMER_TIME_ZONE",
        default_value = "UTC"
    )]
    time_zone: String,

    /// Longest time to finish after a signal
    #[arg(
        long,
        value_name = "TIME",
        env = "CONSUMER_DRAIN_TIMEOUT",
        default_value = "10s"
    )]
    drain_timeout: String,
}

/// A text that may hold credentials.
#[derive(Clone)]
struct Secret(String);

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

/// A producer, or all producers behind a host name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProducerUrl {
    /// Whether it is reached by TLS.
    pub https: bool,
    /// Host name or address, without the brackets of an IPv6 address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Which store to use.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// fjall in this folder.
    Embedded(PathBuf),
    /// A MongoDB connection string; holds credentials, so it prints redacted.
    Mongodb(String),
    /// Count and discard.
    Discard,
}

/// The checked settings. Prints without secrets.
#[derive(Debug, Clone)]
pub struct Config {
    /// Producers to read from; never empty.
    pub producers: Vec<ProducerUrl>,
    /// How to reach them.
    pub security: Security,
    /// The name of this consumer's queue on every producer.
    pub name: String,
    /// Where cookies go.
    pub store: StoreConfig,
    /// How long a batch is collected, at most.
    pub flush_interval: Duration,
    /// Address of the admin port; port 0 takes a free one.
    pub admin: SocketAddr,
    /// Most cookies of one batch.
    pub batch_cookies_max: usize,
    /// Most bytes received but not yet part of a batch.
    pub buffer_bytes_max: usize,
    /// How long a cookie is kept after it was accepted; the longest is also how long an untouched cursor is.
    pub ttls: Ttls,
    /// How long a repeated cookie is not written again; zero writes every one.
    pub refresh_interval: Duration,
    /// Most bytes of memory for knowing what repeats.
    pub refresh_bytes_max: usize,
    /// Where cookies go that the store refuses for ever.
    pub dead_letters: PathBuf,
    /// Most bytes of the dead letters kept.
    pub dead_letter_bytes_max: usize,
    /// What every MongoDB database's name begins with.
    pub mongodb_prefix: String,
    /// How cookies are spread over MongoDB collections.
    pub mongodb_layout: Layout,
    /// Most MongoDB collections written at once.
    pub mongodb_writers: usize,
    /// When expired cookies are deleted.
    pub expiry_window: Window,
    /// When the store is compacted.
    pub compaction_window: Window,
    /// The time zone of the windows.
    pub time_zone: TimeZone,
    /// How long an orderly shutdown may take.
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
        let ms = Duration::from_millis(1);
        let name = if self.name.is_empty() {
            gethostname::gethostname().to_string_lossy().into_owned()
        } else {
            self.name.clone()
        };
        let producers: Vec<_> = self
            .producer
            .iter()
            .filter_map(|text| m.good("--producer", parse_producer(text)))
            .collect();
        let config = Config {
            security: self.security.check(m, &producers),
            producers,
            name: m.check("--name", parse_name(&name)),
            store: m
                .good("--store", parse_store(&self.store.0))
                .unwrap_or(StoreConfig::Discard),
            flush_interval: time(m, "--flush-interval", &self.flush_interval, ms),
            admin: address(m, "--admin", &self.admin),
            batch_cookies_max: number(m, "--batch-cookies", &self.batch_cookies, (1, 10_000_000)),
            buffer_bytes_max: size(m, "--buffer-bytes", &self.buffer_bytes, BUFFER_BYTES),
            ttls: self.check_ttls(m),
            refresh_interval: time(
                m,
                "--refresh-interval",
                &self.refresh_interval,
                Duration::ZERO,
            ),
            refresh_bytes_max: size(m, "--refresh-bytes", &self.refresh_bytes, REFRESH_BYTES),
            dead_letters: self.dead_letters.clone(),
            dead_letter_bytes_max: size(
                m,
                "--dead-letter-bytes",
                &self.dead_letter_bytes,
                DEAD_LETTER_BYTES,
            ),
            mongodb_prefix: m.check("--mongodb-prefix", parse_prefix(&self.mongodb_prefix)),
            mongodb_layout: m
                .good("--mongodb-layout", self.mongodb_layout.parse::<Layout>())
                .unwrap_or_default(),
            mongodb_writers: number(m, "--mongodb-writers", &self.mongodb_writers, (1, 64)),
            expiry_window: window(m, "--expiry-window", &self.expiry_window),
            compaction_window: window(m, "--compaction-window", &self.compaction_window),
            time_zone: m
                .good("--time-zone", parse_time_zone(&self.time_zone))
                .unwrap_or(TimeZone::UTC),
            drain_timeout: time(m, "--drain-timeout", &self.drain_timeout, Duration::ZERO),
        };
        mistakes.or(config)
    }

    fn check_ttls(&self, m: &mut Mistakes) -> Ttls {
        let shortest = Duration::from_secs(1);
        let default = time(m, "--ttl", &self.ttl, shortest);
        let mut by_dsp = BTreeMap::new();
        for text in &self.dsp_ttl {
            let Some((dsp_id, ttl)) = m.good("--dsp-ttl", parse_dsp_ttl(text)) else {
                continue;
            };
            let ttl = time(m, "--dsp-ttl", ttl, shortest);
            if by_dsp.insert(dsp_id, ttl).is_some() {
                m.good::<(), _>("--dsp-ttl", Err(format!("DSP {dsp_id} is named twice")));
            }
        }
        Ttls::new(default, by_dsp)
    }
}

/// Room for a thousand users at least; the upper bound is far beyond any use.
const REFRESH_BYTES: (usize, usize) = (64 << 10, 1 << 40);

/// Room for many letters of the largest size at least.
const DEAD_LETTER_BYTES: (usize, usize) = (64 << 10, 1 << 40);

/// Room for one chunk at least; the upper bound is far beyond any use.
const BUFFER_BYTES: (usize, usize) = (64 << 10, 16 << 30);

fn window(mistakes: &mut Mistakes, flag: &str, text: &str) -> Window {
    let parsed = text.parse::<Window>();
    mistakes.good(flag, parsed).unwrap_or(Window::Never)
}

impl fmt::Display for ProducerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(folder) => write!(f, "embedded:{}", folder.display()),
            Self::Mongodb(uri) => f.write_str(&redact(uri)),
            Self::Discard => f.write_str("none"),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A connection string without user, password and options, any of which may be secret.
fn redact(uri: &str) -> String {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("mongodb", ""));
    let (rest, options) = match rest.split_once('?') {
        Some((rest, _)) => (rest, "?***"),
        None => (rest, ""),
    };
    match rest.rsplit_once('@') {
        Some((_, hosts)) => format!("{scheme}://***@{hosts}{options}"),
        None => format!("{scheme}://{rest}{options}"),
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let producers: Vec<_> = self.producers.iter().map(ToString::to_string).collect();
        write!(
            f,
            "producer={} tls={} token={} name={} store={} flush_interval={:?} admin={} batch_cookies={} buffer_bytes={} ttl={} \
             refresh_interval={:?} refresh_bytes={} dead_letters={} dead_letter_bytes={} mongodb_prefix={} \
             mongodb_layout={} mongodb_writers={} expiry_window={} compaction_window={} time_zone={} drain_timeout={:?}",
            producers.join(","),
            self.security.tls.is_some(),
            self.security.token.is_some(),
            self.name,
            self.store,
            self.flush_interval,
            self.admin,
            self.batch_cookies_max,
            self.buffer_bytes_max,
            self.ttls,
            self.refresh_interval,
            self.refresh_bytes_max,
            self.dead_letters.display(),
            self.dead_letter_bytes_max,
            self.mongodb_prefix,
            self.mongodb_layout,
            self.mongodb_writers,
            self.expiry_window,
            self.compaction_window,
            self.time_zone.iana_name().unwrap_or("system"),
            self.drain_timeout,
        )
    }
}

#[cfg(test)]
mod tests;
