//! The settings of a limiter that serves: flags, `LIMITER_…` environment variables and an optional TOML file.
//!
//! All errors are collected and reported together, before anything is bound.

mod args;

use std::{ffi::OsString, fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use runtime::{
    connect::credentials::loaded,
    rate_limit::Fields,
    reload::{NamedFile, Reloader},
    settings::{self, Common, ConfigErrors, Settings},
};

pub use self::args::{Args, Running};
use super::{limits_file, tokens};

/// The checked settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens for calls.
    pub listen: SocketAddr,
    /// Who may ask; `None`: anybody on this machine.
    pub tokens: Option<Arc<Reloader<tokens::File>>>,
    /// How answers over HTTP tell what is left.
    pub fields: Fields,
    /// Most connections, and most of them from one address.
    pub connections: (usize, usize),
    /// The limits; `None` only where there was an error.
    pub limits: Option<Arc<Reloader<limits_file::File>>>,
    /// The collection with limits.
    pub collection: Option<Collection>,
    /// The directory that keeps what was used.
    pub state: Option<PathBuf>,
    /// Most counters.
    pub counters: usize,
    /// Most bytes of logs and step windows.
    pub counters_memory: usize,
    /// The longest that anything learned holds.
    pub feedback_ttl_max: Duration,
    /// How it is watched and stopped.
    pub running: Running,
    /// What every process has.
    pub common: Common,
}

/// A collection of MongoDB.
#[derive(Clone)]
pub struct Collection {
    /// The connection string; never shown.
    pub uri: String,
    /// The database.
    pub database: String,
    /// Its collection.
    pub name: String,
}

impl fmt::Debug for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.name)
    }
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
        let (serving, limiting) = (self.serving, self.limiting);
        if serving.token_file.is_empty() && !serving.listen.ip().is_loopback() {
            errors.add(format!(
                "--listen: {} is open to others than this machine: name --token-file, or a loopback address",
                serving.listen
            ));
        }
        if limiting.limits.is_empty() {
            errors.add("--limits: names the file with the limits, and is needed");
        }
        let limits = NamedFile::from_flag("--limits", &limiting.limits);
        let tokens = NamedFile::from_flag("--token-file", &serving.token_file);
        let collection = collection(&limiting, errors);
        let is_kept = limiting.state.as_os_str() != "none";
        Config {
            listen: serving.listen,
            tokens: tokens.and_then(|file| loaded(errors, tokens::File(file))),
            fields: serving.ratelimit_fields,
            connections: (serving.connections, serving.connections_per_address),
            limits: limits.and_then(|file| loaded(errors, limits_file::File(file))),
            collection,
            state: is_kept.then_some(limiting.state),
            counters: limiting.counters,
            counters_memory: limiting.counters_memory,
            feedback_ttl_max: limiting.feedback_ttl_max,
            running: self.running,
            common: self.common.check(errors),
        }
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }
}

fn collection(limiting: &args::LimitingArgs, errors: &mut ConfigErrors) -> Option<Collection> {
    let uri = &limiting.limits_mongodb;
    let Some((database, name)) = limiting.limits_collection.clone() else {
        if !uri.is_empty() {
            errors.add("--limits-mongodb: needs --limits-collection");
        }
        return None;
    };
    if cfg!(not(feature = "mongodb")) {
        errors.add(
            "--limits-collection: this limiter was built without MongoDB: a build with `--features limiter/mongodb` has it",
        );
    }
    if !uri.starts_with("mongodb://") {
        errors.add("--limits-mongodb: the collection needs a mongodb:// connection string, best in the environment or the file of --config");
    }
    Some(Collection {
        uri: uri.clone(),
        database,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(flags: &[&str]) -> Result<Config, String> {
        let arguments = ["limiter"].iter().chain(flags).map(Into::into);
        Config::load(arguments).map_err(|error| error.to_string())
    }

    const LIMITS: &str = concat!(
        "--limits=",
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/limits.toml"
    );

    #[test]
    fn without_tokens_only_this_machine_may_ask() {
        for loopback in ["127.0.0.1:0", "[::1]:9099", "127.9.9.9:1"] {
            let config = load(&[LIMITS, &format!("--listen={loopback}")]).unwrap();
            assert!(config.tokens.is_none());
        }
        let refused = load(&[LIMITS, "--listen=0.0.0.0:9099"]).unwrap_err();
        assert!(
            refused.contains("--listen") && refused.contains("--token-file"),
            "{refused}"
        );
    }

    #[test]
    fn errors_are_said_together() {
        let refused =
            load(&["--counters=0", "--state=none", "--feedback-ttl-max=soon"]).unwrap_err();
        for flag in ["--counters", "--feedback-ttl-max", "--limits"] {
            assert!(refused.contains(flag), "{flag}: {refused}");
        }
        assert!(!refused.contains("--state"), "{refused}");
    }
}
