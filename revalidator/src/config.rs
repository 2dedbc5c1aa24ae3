//! Configuration of the program: flags, `REVALIDATOR_…` environment variables and an optional TOML file.
//!
//! All errors are reported together, before a port is opened.

mod args;

use std::sync::Arc;

use runtime::{
    connect::credentials::load_files,
    reload::{NamedFile, Reloader},
    settings::{CommonArgs, ConfigErrors, Settings},
    token,
};
use runtime_nats::Servers;

pub use self::args::{AdminArgs, ApiArgs, Args, WorkArgs};
use crate::apps;

/// The validated configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The settings.
    pub args: Args,
    /// Applications; `None` only if the configuration is invalid.
    pub apps: Option<Arc<Reloader<apps::File>>>,
    /// The NATS servers; `None` only if the configuration is invalid.
    pub nats: Option<Servers>,
    /// Token for the limiter.
    pub limiter_token: Option<Arc<Reloader<token::File>>>,
    /// Accepted tokens; `None` if clients need none, which is allowed on loopback only.
    pub tokens: Option<Arc<Reloader<token::File>>>,
}

impl Settings for Args {
    type Config = Config;

    fn check(self, errors: &mut ConfigErrors) -> Config {
        let (api, work) = (&self.api, &self.work);
        errors.check_ports(api.listen, &api.token_file, self.admin.admin);
        if work.apps.is_empty() {
            errors.add("--apps: missing: set it to the applications file");
        }
        let nats = Servers::check(errors, "--nats", &work.nats, &self.nats_tls);
        let mut token_file = |flag, path: &str| {
            let file = NamedFile::from_flag(flag, path).map(token::File::new);
            file.and_then(|file| load_files(errors, file))
        };
        let tokens = token_file("--token-file", &api.token_file);
        let limiter_token = token_file("--limiter-token-file", &self.limiter.limiter_token_file);
        let apps = NamedFile::from_flag("--apps", &work.apps).map(apps::File);
        Config {
            apps: apps.and_then(|file| load_files(errors, file)),
            nats,
            limiter_token,
            tokens,
            args: self,
        }
    }

    fn common(config: &Config) -> &CommonArgs {
        &config.args.common
    }
}

#[cfg(test)]
mod tests {
    use runtime::settings;

    use super::*;

    fn load(flags: &[&str]) -> Result<Config, String> {
        let arguments = ["revalidator"].iter().chain(flags).map(Into::into);
        let loaded = settings::load::<Args>(arguments);
        loaded
            .map(|loaded| loaded.config)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn errors_are_reported_together() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[apps.shop]\nkind = \"list\"\nhosts = []\n").unwrap();
        let apps = format!("--apps={}", file.path().display());
        let errors = load(&[
            &apps,
            "--nats=http://x",
            "--workers=17",
            "--limiter=x",
            "--listen=0.0.0.0:9096",
            "--drain-timeout=soon",
        ])
        .unwrap_err();
        for part in [
            "--apps",
            "apps.shop: hosts",
            "--nats",
            "--workers",
            "--limiter",
            "--listen",
            "--drain-timeout",
        ] {
            assert!(errors.contains(part), "{part}: {errors}");
        }
    }
}
