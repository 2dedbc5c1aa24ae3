//! The directory of one report: taken before the run, so that an error costs no run, and filled after it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;

use super::{Report, ReportArgs, page};

const DEFAULT_PARENT: &str = "bench-reports";

const JSON: &str = "report.json";
const PAGE: &str = "report.html";

/// A directory that holds nothing yet but what this run will write.
#[derive(Debug)]
pub struct ReportDir {
    path: PathBuf,
}

impl ReportArgs {
    /// Takes the directory for a report of `scenario`; `None` when none is wanted.
    ///
    /// # Errors
    /// When the directory cannot be created or holds something.
    pub fn prepare(&self, scenario: &str) -> Result<Option<ReportDir>> {
        if self.no_report {
            return Ok(None);
        }
        let default = || {
            let now = Timestamp::now().strftime("%Y%m%d-%H%M%S");
            Path::new(DEFAULT_PARENT).join(format!("{scenario}-{now}-{}", std::process::id()))
        };
        let path = self.report.clone().unwrap_or_else(default);
        let describe = || format!("cannot use the directory {} for the report", path.display());
        fs::create_dir_all(&path).with_context(describe)?;
        if fs::read_dir(&path).with_context(describe)?.next().is_some() {
            bail!(
                "{} holds something already: name a new directory with --report",
                path.display()
            );
        }
        Ok(Some(ReportDir { path }))
    }
}

impl ReportDir {
    /// Writes the report: as JSON, and as a page that needs nothing else, whose path it returns.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, report: &Report) -> Result<PathBuf> {
        let put = |name: &str, content: String| {
            let file = self.path.join(name);
            fs::write(&file, content)
                .with_context(|| format!("cannot write {}", file.display()))?;
            anyhow::Ok(file)
        };
        // First, since what was measured is in it even when a plot cannot be drawn.
        put(JSON, serde_json::to_string_pretty(report)?)?;
        put(PAGE, page::html(report)?)
    }
}

/// Writes the report into the directory, when there is one, and says on standard error where it is.
///
/// # Errors
/// When a file cannot be written.
pub fn write_report(dir: Option<ReportDir>, report: impl FnOnce() -> Report) -> Result<()> {
    if let Some(dir) = dir {
        eprintln!("report    {}", dir.write(&report())?.display());
    }
    Ok(())
}

impl Report {
    /// Reads a report that was written into a directory, given that or its JSON file.
    ///
    /// # Errors
    /// When there is none, or it is not of this program.
    pub fn read(path: &Path) -> Result<Self> {
        let file = if path.is_dir() {
            path.join(JSON)
        } else {
            path.to_owned()
        };
        let json = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let report = serde_json::from_slice(&json);
        report.with_context(|| format!("{} is not a report of bench", file.display()))
    }
}
