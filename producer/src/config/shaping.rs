//! Settings of the DSP rate limits.

use std::path::PathBuf;

use runtime::{
    connect::credentials::load_files,
    reload::NamedFile,
    settings::{CONTENTS, ConfigErrors},
};

use crate::shaping::limits_file::{self, File, LimitsFile};

/// The settings as written; an empty string means not set.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "DSP rate limits")]
pub(super) struct LimitsArgs {
    /// TOML file with DSP rate limits and the handling of excess cookies: observe, police or shape
    ///
    /// Reloaded when it changes; an invalid version is rejected. Validate a file with `limiter check --for producer`.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    limits: String,

    /// File that stores queued cookies while the producer is stopped [default: none, queued cookies are released early at shutdown]
    ///
    /// Each producer needs its own file.
    #[arg(long, value_name = "FILE", default_value = "")]
    limits_spool: String,
}

/// The validated settings, and the content of the limits file.
#[derive(Debug, Clone, Default)]
pub struct LimitsConfig {
    /// The limits file.
    pub(crate) file: Option<LimitsFile>,
    /// The file that stores queued cookies while the producer is stopped.
    pub(crate) spool: Option<PathBuf>,
}

impl LimitsArgs {
    /// Reads the limits file; adds all errors to `errors`.
    pub(super) fn check(self, errors: &mut ConfigErrors) -> LimitsConfig {
        let spool = (!self.limits_spool.is_empty()).then(|| PathBuf::from(&self.limits_spool));
        if let Some(spool) = &spool {
            if self.limits.is_empty() {
                errors.add("--limits-spool: requires --limits");
            }
            // Report an unusable path at the start, not at shutdown.
            let dir = spool.parent().filter(|dir| !dir.as_os_str().is_empty());
            if spool.is_dir() || dir.is_some_and(|dir| !dir.is_dir()) {
                let path = spool.display();
                errors.add(format!(
                    "--limits-spool: {path}: must be a file in an existing directory"
                ));
            }
        }
        let file = NamedFile::from_flag("--limits", &self.limits);
        LimitsConfig {
            file: file.and_then(|file| load_files(errors, File(file))),
            spool,
        }
    }
}

impl LimitsConfig {
    /// Reloads the limits file once, for callers that do not watch it.
    pub fn reload(&self) {
        if let Some(file) = &self.file {
            file.reload_once();
        }
    }

    /// Maximum bytes of all DSP queues under the current limits file.
    pub(crate) fn queue_bytes_max(&self) -> u64 {
        let file = self.file.as_ref();
        file.map_or(0, |file| limits_file::queue_bytes_max(&file.current()))
    }
}
