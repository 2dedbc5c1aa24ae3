//! Configuration of `limiter serve`: flags, `LIMITER_…` environment variables and an optional TOML file.
//!
//! All errors are reported together, before a port is opened.

mod args;

use std::{ffi::OsString, fmt, path::PathBuf, sync::Arc};

use runtime::{
    connect::credentials::load_files,
    reload::{NamedFile, Reloader},
    settings::{self, CommonArgs, ConfigErrors, Settings},
};

pub use self::args::{AdminArgs, ApiArgs, Args};
use super::{limits_file, tokens};

/// The validated configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// API port.
    pub api: ApiArgs,
    /// Accepted tokens; `None` if clients need none, which is allowed on loopback only.
    pub tokens: Option<Arc<Reloader<tokens::File>>>,
    /// The limits file; `None` only together with an error.
    pub limits: Option<Arc<Reloader<limits_file::File>>>,
    /// MongoDB collection with limits.
    pub collection: Option<Collection>,
    /// State directory.
    pub state: PathBuf,
    /// Maximum number of counters.
    pub counters: usize,
    /// Maximum bytes of sliding-log and step-window counters.
    pub counters_memory: usize,
    /// Admin port and shutdown.
    pub admin: AdminArgs,
    /// Settings that all programs have.
    pub common: CommonArgs,
}

/// A MongoDB collection. `Debug` prints its name only.
#[derive(Clone)]
pub struct Collection {
    /// Connection string, which may contain a password.
    pub uri: String,
    /// Name of the database.
    pub database: String,
    /// Name of the collection.
    pub name: String,
}

impl fmt::Debug for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.database, self.name)
    }
}

impl Config {
    /// Reads and validates the configuration of a program started with `arguments`, including its own name.
    ///
    /// # Errors
    /// With all errors, ready to be printed; also for `--help` and `--version`.
    pub fn load(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        settings::load::<Args>(arguments).map(|loaded| loaded.config)
    }
}

impl Settings for Args {
    type Config = Config;

    fn check(self, errors: &mut ConfigErrors) -> Config {
        let (api, limits, admin) = (self.api, self.limits, self.admin);
        errors.check_ports(api.listen, &api.token_file, admin.admin);
        if limits.limits.is_empty() {
            errors.add("--limits: missing: set it to the limits file");
        }
        let limits_file =
            NamedFile::from_flag("--limits", &limits.limits).map(limits_file::File::new);
        let token_file =
            NamedFile::from_flag("--token-file", &api.token_file).map(tokens::File::new);
        let collection = collection(&limits, errors);
        Config {
            tokens: token_file.and_then(|file| load_files(errors, file)),
            limits: limits_file.and_then(|file| load_files(errors, file)),
            collection,
            state: limits.state,
            counters: limits.counters,
            counters_memory: limits.counters_memory,
            api,
            admin,
            common: self.common,
        }
    }

    fn common(config: &Config) -> &CommonArgs {
        &config.common
    }
}

fn collection(args: &args::LimitsArgs, errors: &mut ConfigErrors) -> Option<Collection> {
    let uri = &args.limits_mongodb;
    let Some((database, name)) = args.limits_collection.clone() else {
        if !uri.is_empty() {
            errors.add("--limits-mongodb: requires --limits-collection");
        }
        return None;
    };
    if cfg!(not(feature = "mongodb")) {
        errors.add(
            "--limits-collection: not supported by this build: build with `--features limiter/mongodb`",
        );
    }
    if !uri.starts_with("mongodb://") {
        errors.add("--limits-mongodb: not a mongodb:// connection string: set one, preferably in the environment or the --config file");
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
    fn listening_beyond_loopback_requires_tokens() {
        for loopback in ["127.0.0.1:0", "[::1]:9099", "127.9.9.9:1"] {
            let config = load(&[LIMITS, &format!("--listen={loopback}")]).unwrap();
            assert!(config.tokens.is_none());
        }
        let errors = load(&[LIMITS, "--listen=0.0.0.0:9099"]).unwrap_err();
        assert!(
            errors.contains("--listen") && errors.contains("--token-file"),
            "{errors}"
        );
    }

    #[test]
    fn errors_are_reported_together() {
        let errors = load(&["--counters=0", "--counters-memory=soon"]).unwrap_err();
        for flag in ["--counters", "--counters-memory", "--limits"] {
            assert!(errors.contains(flag), "{flag}: {errors}");
        }
    }

    #[test]
    fn equal_addresses_of_both_ports_are_rejected() {
        let same = ["--listen=127.0.0.1:9097", "--admin=127.0.0.1:9097"];
        let errors = load(&[LIMITS, same[0], same[1]]).unwrap_err();
        let expected = "--admin: 127.0.0.1:9097 is also the address of --listen";
        assert!(errors.contains(expected), "{errors}");
        load(&[LIMITS, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]).unwrap();
    }
}
