//! The settings of the limits that DSPs have agreed on.

use std::path::PathBuf;

use runtime::{
    connect::credentials::load_files,
    reload::NamedFile,
    settings::{CONTENTS, ConfigErrors},
};

use crate::shaping::limits_file::{self, File, LimitsFile};

/// The settings, a field for each; an empty string means not set.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What DSPs have agreed on")]
pub(super) struct LimitsArgs {
    /// TOML file with DSP rate limits, and how to handle cookies over a limit: observe, police or shape
    ///
    /// It is looked at again every second; an invalid version changes nothing. `limiter check --for producer` says what a file means.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    limits: String,

    /// File that stores queued cookies while the producer is stopped [default: none, queued cookies are released early at shutdown]
    ///
    /// Each producer needs its own file.
    #[arg(long, value_name = "FILE", default_value = "")]
    limits_spool: String,
}

/// The checked settings, and what the file says.
#[derive(Debug, Clone, Default)]
pub struct LimitsConfig {
    /// Which DSPs are under which limits.
    pub(crate) file: Option<LimitsFile>,
    /// The file that keeps what waits while the producer is stopped.
    pub(crate) spool: Option<PathBuf>,
}

impl LimitsArgs {
    /// Reads the file; notes what is wrong with it.
    pub(super) fn check(self, errors: &mut ConfigErrors) -> LimitsConfig {
        let spool = (!self.limits_spool.is_empty()).then(|| PathBuf::from(&self.limits_spool));
        if let Some(spool) = &spool {
            if self.limits.is_empty() {
                errors.add("--limits-spool: needs --limits");
            }
            // What cannot be written at the end is said at the start.
            let dir = spool.parent().filter(|dir| !dir.as_os_str().is_empty());
            if spool.is_dir() || dir.is_some_and(|dir| !dir.is_dir()) {
                let path = spool.display();
                errors.add(format!(
                    "--limits-spool: {path}: names a file in a directory that exists"
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
    /// Looks at the file once, where nothing else does.
    pub fn look(&self) {
        if let Some(file) = &self.file {
            file.reload_once();
        }
    }

    /// Most bytes that what waits may take, by the file as it is now.
    pub(crate) fn queue_bytes_max(&self) -> u64 {
        let file = self.file.as_ref();
        file.map_or(0, |file| limits_file::queue_bytes_max(&file.current()))
    }
}
