//! Settings of the DSPs: their contracts with their rate limits, and their metric series.

use std::path::PathBuf;

use runtime::{
    connect::credentials::load_files,
    reload::NamedFile,
    settings::{BOOLEAN, CONTENTS, ConfigErrors},
};

use crate::{
    contracts::file::{ContractsFile, File},
    inlet,
};

/// The settings as written; an empty string means not set.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "DSPs")]
pub(super) struct DspsArgs {
    /// TOML file with DSP contracts: permitted buyer uids, responses and rate limits [default: none; all DSPs are accepted]
    ///
    /// The file is reloaded when it changes; an invalid version is rejected. Each listed DSP has its own metric series. Validate a
    /// file with `producer contracts check FILE`.
    #[arg(long, group = CONTENTS, value_name = "FILE", default_value = "")]
    contracts: String,

    /// Accept macros that were not replaced, and other placeholders, as buyer uids. With --contracts, use `refuse` in the file
    #[arg(long, value_name = BOOLEAN)]
    accept_placeholders: bool,

    /// File in which the producer saves cookies queued by DSP limits when it stops [default: none; at shutdown, queued cookies are
    /// released regardless of their limits]
    ///
    /// Each producer needs its own file.
    #[arg(long, value_name = "FILE", default_value = "")]
    limits_spool: String,
}

/// The validated settings, and the content of the contracts file.
#[derive(Debug, Clone, Default)]
pub struct DspsConfig {
    /// The contracts file.
    pub contracts: Option<ContractsFile>,
    /// Without a contracts file, whether placeholders are buyer uids.
    pub accept_placeholders: bool,
    /// The file that stores queued cookies while the producer is stopped.
    pub(crate) limits_spool: Option<PathBuf>,
}

impl DspsConfig {
    /// Maximum bytes of all DSP queues under the current limits.
    pub(crate) fn queue_bytes_max(&self) -> usize {
        let file = self.contracts.as_ref();
        let bytes = file.map_or(0, |file| inlet::queue_bytes_max(&file.current().limits));
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

impl DspsArgs {
    /// Reads the contracts file; adds all errors to `errors`.
    pub(super) fn check(self, errors: &mut ConfigErrors) -> DspsConfig {
        let spool = (!self.limits_spool.is_empty()).then(|| PathBuf::from(&self.limits_spool));
        if let Some(spool) = &spool {
            if self.contracts.is_empty() {
                errors.add("--limits-spool: requires --contracts");
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
        let file = NamedFile::from_flag("--contracts", &self.contracts);
        if self.accept_placeholders && file.is_some() {
            errors.add("--accept-placeholders: has no effect with --contracts: set `refuse = []` in the file");
        }
        DspsConfig {
            accept_placeholders: self.accept_placeholders,
            contracts: file.and_then(|file| load_files(errors, File::new(file))),
            limits_spool: spool,
        }
    }
}
