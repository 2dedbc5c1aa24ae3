//! The folder of one report: taken before the run, so that a mistake costs no run, and filled after it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use super::{Report, ReportArgs};

const DEFAULT_PARENT: &str = "bench-reports";

/// A folder that holds nothing yet but what this run will write.
#[derive(Debug)]
pub struct ReportFolder {
    path: PathBuf,
}

impl ReportArgs {
    /// Takes the folder for a report of `scenario`; `None` when none is wanted.
    ///
    /// # Errors
    /// When the folder cannot be created or holds something.
    pub fn prepare(&self, scenario: &str) -> Result<Option<ReportFolder>> {
        if self.no_report {
            return Ok(None);
        }
        let default = || {
            let now = Timestamp::now().strftime("%Y%m%d-%H%M%S");
            Path::new(DEFAULT_PARENT).join(format!("{scenario}-{now}-{}", std::process::id()))
        };
        let path = self.report.clone().unwrap_or_else(default);
        let describe = || format!("cannot use the folder {} for the report", path.display());
        fs::create_dir_all(&path).with_context(describe)?;
        if fs::read_dir(&path).with_context(describe)?.next().is_some() {
            bail!(
                "{} holds something already: name a new folder with --report",
                path.display()
            );
        }
        Ok(Some(ReportFolder { path }))
    }
}

impl ReportFolder {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the report.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, report: &Report) -> Result<()> {
        let file = self.path.join("report.json");
        let json = serde_json::to_vec_pretty(report)?;
        fs::write(&file, json).with_context(|| format!("cannot write {}", file.display()))
    }
}
