//! Settings of a producer: flags, `PRODUCER_…` environment variables and an optional TOML file.

mod api;
mod archive;
mod args;
mod dsps;

use std::ffi::OsString;

use runtime::settings::{self, CommonArgs, ConfigErrors, Settings};

pub use self::{
    api::{ApiConfig, ApiLimits},
    archive::ArchiveConfig,
    args::{Args, Network, ResourceLimits, Retention, Shutdown},
    dsps::DspsConfig,
};
use crate::{edge::browser_cookies::BrowserCookies, security::Security, server::SEND_BUFFER_BYTES};

/// The validated settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses and identity.
    pub network: Network,
    /// HTTP cookies of browsers.
    pub cookies: BrowserCookies,
    /// Log and retention.
    pub retention: Retention,
    /// Resource limits.
    pub limits: ResourceLimits,
    /// Contracts of the DSPs.
    pub dsps: DspsConfig,
    /// TLS and authentication of the gRPC port.
    pub security: Security,
    /// The API for bulk input and deletions.
    pub api: ApiConfig,
    /// The archive.
    pub archive: ArchiveConfig,
    /// Time limits of the shutdown.
    pub shutdown: Shutdown,
    /// Settings that all programs share.
    pub common: CommonArgs,
}

impl Config {
    /// Reads the settings; `arguments` begin with the program name.
    ///
    /// # Errors
    /// All configuration errors together, ready to be printed; also the output of `--help` and `--version`.
    pub fn load(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        settings::load::<Args>(arguments).map(|loaded| loaded.config)
    }
}

impl Settings for Args {
    type Config = Config;

    fn check(self, errors: &mut ConfigErrors) -> Config {
        let stream_bytes_max = SEND_BUFFER_BYTES + 3 * self.retention.chunk_bytes;
        if self.limits.in_flight_bytes < stream_bytes_max {
            errors.add(format!(
                "--in-flight-bytes: must be at least {stream_bytes_max} bytes, the maximum in flight to one stream with this --chunk-bytes"
            ));
        }
        Config {
            security: self.security.check(self.network.grpc, errors),
            archive: self.archive.check(errors, self.retention.chunk_bytes),
            cookies: self.network.cookies.clone().check(errors),
            network: self.network,
            retention: self.retention,
            limits: self.limits,
            dsps: self.dsps.check(errors),
            api: self.api.check(errors),
            shutdown: self.shutdown,
            common: self.common,
        }
    }

    fn common(config: &Config) -> &CommonArgs {
        &config.common
    }
}

#[cfg(test)]
mod tests;
