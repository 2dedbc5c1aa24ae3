//! The directory of a report. It is created before the run, so that errors are found before the measurement. It is
//! filled after the run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;

use super::{data::Report, page, plot};

const DEFAULT_PARENT: &str = "bench-reports";

const JSON: &str = "report.json";
const PAGE: &str = "report.html";

/// Output options.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Report")]
pub struct ReportArgs {
    /// New or empty directory for the report [default: bench-reports/SCENARIO-TIME-PID].
    #[arg(long, value_name = "DIR", conflicts_with = "no_report")]
    pub report: Option<PathBuf>,
    /// Do not write a report.
    #[arg(long)]
    pub no_report: bool,
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    pub json: bool,
}

impl ReportArgs {
    /// Creates the empty directory for a report of `scenario`; returns `None` with `--no-report`.
    ///
    /// # Errors
    /// The directory cannot be created or is not empty.
    pub fn prepare(&self, scenario: &str) -> Result<Option<PathBuf>> {
        if self.no_report {
            return Ok(None);
        }
        let default = || {
            let now = Timestamp::now().strftime("%Y%m%d-%H%M%S");
            Path::new(DEFAULT_PARENT).join(format!("{scenario}-{now}-{}", std::process::id()))
        };
        let path = self.report.clone().unwrap_or_else(default);
        let describe = || format!("cannot use {} as the report directory", path.display());
        fs::create_dir_all(&path).with_context(describe)?;
        if fs::read_dir(&path).with_context(describe)?.next().is_some() {
            bail!(
                "report directory {} is not empty; choose a new one with --report",
                path.display()
            );
        }
        Ok(Some(path))
    }
}

impl Report {
    /// Writes the report as JSON, its plots as SVG, and all as a self-contained page; returns the path of the page.
    ///
    /// # Errors
    /// A file cannot be written, or a plot cannot be drawn.
    pub fn write(&self, dir: &Path) -> Result<PathBuf> {
        let put = |name: &str, content: String| {
            let file = dir.join(name);
            fs::write(&file, content)
                .with_context(|| format!("failed to write {}", file.display()))?;
            anyhow::Ok(file)
        };
        // JSON first: it keeps the measurements even if a plot cannot be drawn.
        put(JSON, serde_json::to_string_pretty(self)?)?;
        for (number, plot) in (1..).zip(&self.plots) {
            put(&format!("plot-{number}.svg"), plot::draw(plot)?)?;
        }
        put(PAGE, page::html(self)?)
    }
}
