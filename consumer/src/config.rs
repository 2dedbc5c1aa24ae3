//! The settings of a consumer: flags, `CONSUMER_…` environment variables and an optional TOML file.
//!
//! All errors are collected and reported together, before anything is bound. Nothing else in this crate reads
//! the environment. No text made here contains the credentials of a store.

mod args;
mod parse;
mod security;

use std::{collections::BTreeSet, ffi::OsString, fmt, path::PathBuf};

use runtime::{
    connect::credentials::Security,
    settings::{self, Common, ConfigErrors, Settings, redacted},
};

pub use self::args::{
    Args, MaintenanceArgs, MongodbArgs, ProcessArgs, ProducersArgs, RetentionArgs, StorageArgs,
};

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
    /// fjall in this directory.
    Embedded(PathBuf),
    /// A MongoDB connection string; holds credentials, so it prints redacted.
    Mongodb(String),
    /// Count and discard.
    Discard,
}

/// The checked settings. Prints without secrets.
#[derive(Debug, Clone)]
pub struct Config {
    /// Whom it reads from, and who it is.
    pub producers: ProducersArgs,
    /// How it reaches producers.
    pub security: Security,
    /// Where cookies go.
    pub storage: StorageArgs,
    /// How long cookies are kept.
    pub retention: RetentionArgs,
    /// What MongoDB is asked for.
    pub mongodb: MongodbArgs,
    /// What is done at night.
    pub maintenance: MaintenanceArgs,
    /// How it is watched and stopped.
    pub process: ProcessArgs,
    /// What every process has.
    pub common: Common,
}

impl Config {
    /// Reads the settings of a program started with `arguments`, its own name first.
    ///
    /// # Errors
    /// With all errors at once, ready to be printed; also for `--help` and `--version`.
    pub fn load(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        settings::load::<Args>(arguments).map(|loaded| loaded.config)
    }
}

impl Settings for Args {
    type Config = Config;

    fn check(self, errors: &mut ConfigErrors) -> Config {
        self.storage.check(errors);
        self.retention.check(errors);
        Config {
            security: self.security.check(errors, &self.producers.producer),
            producers: self.producers,
            storage: self.storage,
            retention: self.retention,
            mongodb: self.mongodb,
            maintenance: self.maintenance,
            process: self.process,
            common: self.common.check(errors),
        }
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }
}

impl StorageArgs {
    fn check(&self, errors: &mut ConfigErrors) {
        if let Some(both) = self.dsps().intersection(&self.rejected_dsps()).next() {
            errors.add(format!("--rejected-dsps: DSP {both} is in --dsps, too"));
        }
    }
}

impl RetentionArgs {
    fn check(&self, errors: &mut ConfigErrors) {
        let mut named = BTreeSet::new();
        for (dsp_id, _) in &self.dsp_ttl {
            if !named.insert(dsp_id) {
                errors.add(format!("--dsp-ttl: DSP {dsp_id} is named twice"));
            }
        }
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
            Self::Embedded(dir) => write!(f, "embedded:{}", dir.display()),
            Self::Mongodb(uri) => f.write_str(&redacted(uri)),
            Self::Discard => f.write_str("none"),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
