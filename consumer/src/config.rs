//! The settings of a consumer: flags, `CONSUMER_…` environment variables and an optional TOML file.
//!
//! All mistakes are collected and reported together, before anything is bound. Nothing else in this crate reads
//! the environment. No text made here contains the credentials of a store.

mod args;
mod check;
mod parse;
mod security;

use std::{
    collections::BTreeSet, ffi::OsString, fmt, net::SocketAddr, path::PathBuf, time::Duration,
};

use jiff::tz::TimeZone;
use runtime::{
    connect::credentials::Security,
    settings::{self, Common, without_secret},
};

pub use self::args::Args;
use crate::{ttl::Ttls, window::Window};

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
    /// At least so many of them share what is kept for receiving; more do when more are found.
    pub producers_expected: usize,
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
    /// Where cookies go that the store does not take of one DSP alone.
    pub set_aside: PathBuf,
    /// Most bytes of these.
    pub set_aside_bytes_max: usize,
    /// DSPs that always have a place in the store.
    pub dsps: BTreeSet<u32>,
    /// Most others that get one by being seen.
    pub dsps_max: usize,
    /// DSPs that get none.
    pub dsps_refused: BTreeSet<u32>,
    /// What every MongoDB database's name begins with.
    pub mongodb_prefix: String,
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
    /// What every process has.
    pub common: Common,
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
            Self::Mongodb(uri) => f.write_str(&without_secret(uri)),
            Self::Discard => f.write_str("none"),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let producers: Vec<_> = self.producers.iter().map(ToString::to_string).collect();
        write!(
            f,
            "producer={} producers_expected={} tls={} token={} name={} store={} flush_interval={:?} admin={} batch_cookies={} buffer_bytes={} ttl={} \
             refresh_interval={:?} refresh_bytes={} dead_letters={} dead_letter_bytes={} set_aside={} set_aside_bytes={} dsps={} dsps_max={} dsps_refused={} mongodb_prefix={} \
             mongodb_writers={} expiry_window={} compaction_window={} time_zone={} drain_timeout={:?} log_filter={}",
            producers.join(","),
            self.producers_expected,
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
            self.set_aside.display(),
            self.set_aside_bytes_max,
            self.dsps.len(),
            self.dsps_max,
            self.dsps_refused.len(),
            self.mongodb_prefix,
            self.mongodb_writers,
            self.expiry_window,
            self.compaction_window,
            self.time_zone.iana_name().unwrap_or("system"),
            self.drain_timeout,
            self.common.log_filter,
        )
    }
}

#[cfg(test)]
mod tests;
