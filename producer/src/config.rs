//! The settings of a producer: flags, `PRODUCER_…` environment variables and an optional TOML file.

mod args;
mod dsps;
mod shaping;

use std::ffi::OsString;

use runtime::settings::{self, Common, ConfigErrors, Settings};

pub use self::{
    args::{Args, Granted, Keeping, Listening, Stopping},
    shaping::LimitsConfig,
};
use crate::{edge::dsps::Shown, security::Security, server::SEND_BUFFER_BYTES};

/// The checked settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens, and who it is.
    pub listening: Listening,
    /// What it keeps.
    pub keeping: Keeping,
    /// Limits.
    pub limits: Granted,
    /// DSPs that are known.
    pub dsps: Shown,
    /// What they have agreed on.
    pub shaping: LimitsConfig,
    /// Who may read the streams.
    pub security: Security,
    /// How it stops.
    pub stopping: Stopping,
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
        let held_by_one = SEND_BUFFER_BYTES + 3 * self.keeping.chunk_bytes;
        if self.limits.in_flight_bytes < held_by_one {
            errors.add(format!(
                "--in-flight-bytes: less than one stalled stream may hold, {held_by_one} bytes with these chunks"
            ));
        }
        Config {
            listening: self.listening,
            keeping: self.keeping,
            limits: self.limits,
            dsps: self.dsps.check(errors),
            shaping: self.shaping.check(errors),
            security: self.security.check(errors),
            stopping: self.stopping,
            common: self.common.check(errors),
        }
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }
}

#[cfg(test)]
mod tests;
