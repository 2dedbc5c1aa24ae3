//! The settings and info commands that every process shares.

use std::path::PathBuf;

use super::{RELOADED, info_commands::InfoArgs};
use crate::logging::{Filter, Format};

/// The common flags. [`command`](super::command) adds their environment variables, prefixed with the program name.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logging and diagnostics")]
pub struct CommonArgs {
    /// TOML file with settings
    ///
    /// Keys are flag names with underscores; unknown keys are errors. The file is reloaded when it changes, and on SIGHUP; an invalid
    /// version is rejected. The log lists changes that require a restart.
    #[arg(long, value_name = "FILE", help_heading = "Configuration file")]
    config: Option<PathBuf>,

    /// Log level, or levels per module, such as info,consumer=debug
    ///
    /// Levels are error, warn, info, debug (each connection and batch), trace and off.
    #[arg(long, group = RELOADED, value_name = "FILTER", default_value = "info")]
    pub log_filter: Filter,

    /// Format of the log on standard error: text or json
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub log_format: Format,

    #[command(flatten)]
    info: InfoArgs,
}
