//! The settings that every process has, and what it can be asked for instead of running.

use std::path::PathBuf;

use clap::ArgAction;

use super::{ConfigErrors, RELOADED, boolean, info_commands::InfoArgs, optional};
use crate::logging::{self, Filter, Format};

/// As they are written. Their environment variables are named by [`command`](super::command), after the program.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logging and diagnosis")]
pub struct CommonArgs {
    /// TOML file with settings
    ///
    /// Its keys are the flags' names with underscores; one that is none is an error. It is looked at every few
    /// seconds, and on SIGHUP: what can change while the process runs does, and of the rest the log says what needs a
    /// restart. A file with an error changes nothing.
    #[arg(long, value_name = "FILE", help_heading = "Where settings come from")]
    config: Option<PathBuf>,

    /// Log level, or levels per module, such as info,consumer=debug [default: RUST_LOG, or info]
    ///
    /// Levels are error, warn, info, debug (each connection and batch), trace and off.
    #[arg(
        long,
        group = RELOADED,
        value_name = "FILTER",
        default_value = "",
        value_parser = optional(|text| Ok(text.parse::<Filter>()?))
    )]
    log_filter: std::option::Option<Filter>,

    /// How a line of the log is written, on standard error: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: Format,

    /// Enable profiling and the log filter on the admin port
    ///
    /// It then answers /debug/profile, and /log-filter to GET and PUT. Anyone who reaches the port can slow the process down
    /// with these, or silence its log.
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = boolean
    )]
    debug_endpoints: bool,

    #[command(flatten)]
    info: InfoArgs,
}

/// The same, checked.
#[derive(Debug, Clone)]
pub struct Common {
    /// What is logged.
    pub log_filter: Filter,
    /// How.
    pub log_format: Format,
    /// Whether the admin port may profile, and change the filter.
    pub debug_endpoints: bool,
}

impl CommonArgs {
    /// What they mean; notes what is wrong with `RUST_LOG` where that counts.
    pub fn check(self, errors: &mut ConfigErrors) -> Common {
        let default_filter = || errors.check(logging::FILTER_VARIABLE, logging::default_filter());
        Common {
            log_filter: self.log_filter.unwrap_or_else(default_filter),
            log_format: self.log_format,
            debug_endpoints: self.debug_endpoints,
        }
    }
}
