//! The settings of a consumer: flags, `CONSUMER_…` environment variables and an optional TOML file.
//!
//! All mistakes are collected and reported together, before anything is bound. Nothing else in this crate reads
//! the environment. No text made here contains the credentials of a store.

mod parse;

use std::{ffi::OsString, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Parser;
use cookiesync::process::settings::{self, Mistakes, address, number, size, time};
use jiff::tz::TimeZone;

use crate::window::Window;
use parse::{parse_name, parse_producer, parse_store, parse_time_zone};

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

    /// Address for /metrics, /healthz, /readyz and /v1/users/ID
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
    /// How long a cookie is kept after it was accepted, and an untouched cursor after it was committed.
    pub ttl: Duration,
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
        let config = Config {
            producers: self
                .producer
                .iter()
                .filter_map(|text| m.good("--producer", parse_producer(text)))
                .collect(),
            name: m.check("--name", parse_name(&name)),
            store: m
                .good("--store", parse_store(&self.store.0))
                .unwrap_or(StoreConfig::Discard),
            flush_interval: time(m, "--flush-interval", &self.flush_interval, ms),
            admin: address(m, "--admin", &self.admin),
            batch_cookies_max: number(m, "--batch-cookies", &self.batch_cookies, (1, 10_000_000)),
            buffer_bytes_max: size(m, "--buffer-bytes", &self.buffer_bytes, BUFFER_BYTES),
            ttl: time(m, "--ttl", &self.ttl, Duration::from_secs(1)),
            expiry_window: window(m, "--expiry-window", &self.expiry_window),
            compaction_window: window(m, "--compaction-window", &self.compaction_window),
            time_zone: m
                .good("--time-zone", parse_time_zone(&self.time_zone))
                .unwrap_or(TimeZone::UTC),
            drain_timeout: time(m, "--drain-timeout", &self.drain_timeout, Duration::ZERO),
        };
        mistakes.or(config)
    }
}

/// Room for one chunk at least; the upper bound is far beyond any use.
const BUFFER_BYTES: (usize, usize) = (64 << 10, 16 << 30);

fn window(mistakes: &mut Mistakes, flag: &str, text: &str) -> Window {
    let parsed = text.parse::<Window>();
    mistakes.good(flag, parsed).unwrap_or(Window::Never)
}

impl fmt::Display for ProducerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "http://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "http://{}:{}", self.host, self.port)
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
            "producer={} name={} store={} flush_interval={:?} admin={} batch_cookies={} buffer_bytes={} ttl={} \
             expiry_window={} compaction_window={} time_zone={} drain_timeout={:?}",
            producers.join(","),
            self.name,
            self.store,
            self.flush_interval,
            self.admin,
            self.batch_cookies_max,
            self.buffer_bytes_max,
            humantime::format_duration(self.ttl),
            self.expiry_window,
            self.compaction_window,
            self.time_zone.iana_name().unwrap_or("system"),
            self.drain_timeout,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn load(arguments: &[&str]) -> Result<Config, String> {
        let arguments = ["consumer"].into_iter().chain(arguments.iter().copied());
        Config::load(arguments.map(OsString::from)).map_err(|error| error.to_string())
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[track_caller]
    fn check_producers(config: &Config, expected: &[&str]) {
        let producers: Vec<_> = config.producers.iter().map(ToString::to_string).collect();
        assert_eq!(producers, expected);
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let config = load(&[]).unwrap();
        check_producers(&config, &["http://127.0.0.1:7676"]);
        assert_eq!(config.store, StoreConfig::Embedded("./data".into()));
        assert_eq!(config.flush_interval, Duration::from_millis(200));
        assert_eq!(config.admin, "127.0.0.1:9091".parse().unwrap());
        assert_eq!(config.buffer_bytes_max, 16 << 20);
        assert_eq!(config.ttl, Duration::from_secs(14 * 86_400));
        assert_eq!(config.expiry_window.to_string(), "01:00-03:00");
        assert_eq!(config.compaction_window.to_string(), "03:00-06:00");
        assert_eq!(config.drain_timeout, Duration::from_secs(10));
        assert!(!config.name.is_empty());
    }

    #[test]
    fn flag_beats_file_beats_default() {
        let file = file(
            "ttl = '7d'\nflush_interval = '1s'\nbatch_cookies = 5\nbuffer_bytes = '64MiB'\n\
             producer = ['http://a:1', 'http://b']\n",
        );
        let file = file.path().to_str().unwrap();
        let config = load(&["--config", file, "--flush-interval", "50ms"]).unwrap();
        assert_eq!(config.flush_interval, Duration::from_millis(50));
        assert_eq!(config.ttl, Duration::from_secs(7 * 86_400));
        assert_eq!(config.batch_cookies_max, 5);
        assert_eq!(config.buffer_bytes_max, 64 << 20);
        check_producers(&config, &["http://a:1", "http://b:7676"]);
    }

    #[test]
    fn producers_are_repeatable_and_comma_separated() {
        let two = "--producer=http://a:1,http://b:2";
        let config = load(&[two, "--producer", "http://[::1]:3"]).unwrap();
        check_producers(&config, &["http://a:1", "http://b:2", "http://[::1]:3"]);
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let file = file("flush = '1s'\nname = []\nadmin = 'here'\nstore = ['none']\n");
        let config = format!("--config={}", file.path().display());
        let arguments = [
            "--producer=ftp://a,http://b:1",
            "--store=mangodb://user:secret@host",
            "--batch-cookies=0",
            "--buffer-bytes=1KiB",
            "--ttl=2 years",
            "--expiry-window=noon",
            "--compaction-window=",
            "--time-zone=Mars/Base",
            "--drain-timeout=soon",
        ];
        let mistakes = load(&[&[config.as_str()], &arguments[..]].concat()).unwrap_err();
        let flags = arguments.map(|argument| argument.split_once('=').unwrap().0);
        let in_file = [
            "unknown key flush",
            "name takes one value",
            "store takes one value",
            "--admin",
        ];
        for part in flags.iter().chain(&in_file) {
            assert!(mistakes.contains(part), "{part} is missing in {mistakes}");
        }
        assert!(!mistakes.contains("secret"), "{mistakes}");
    }

    #[test]
    fn credentials_are_never_printed() {
        for uri in [
            "mongodb://user:secret@host:27017/db?authSource=secret",
            "mongodb://host/?authMechanismProperties=AWS_SESSION_TOKEN:secret",
        ] {
            let file = file(&format!("store = '{uri}'"));
            let file = format!("--config={}", file.path().display());
            let store = format!("--store={uri}");
            for argument in [&file, &store] {
                let config = load(&[argument]).unwrap();
                assert_eq!(config.store, StoreConfig::Mongodb(uri.to_owned()));
                for text in [config.to_string(), format!("{config:?}")] {
                    assert!(!text.contains("secret"), "{text}");
                    assert!(text.contains("host"), "{text}");
                }
                for also in ["--help", "--ttl=never"] {
                    let text = load(&[argument, also]).unwrap_err();
                    assert!(!text.contains("secret"), "{text}");
                }
            }
        }
    }
}
