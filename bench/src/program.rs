//! Runs a scenario of a program, and reports its results.

use anyhow::Result;
use runtime::raise_open_files;

use crate::report::{Environment, Report, ReportArgs};

/// Runs a scenario, prints its report and writes it into its directory; true if all checks passed. Warns if a program was not
/// built with the shipped profile.
///
/// # Errors
/// The scenario fails, or the report cannot be written.
pub async fn run_scenario(
    name: &str,
    options: &ReportArgs,
    scenario: impl Future<Output = Result<Report>>,
) -> Result<bool> {
    if let Some(warning) = Environment::of_this_run().profile_warning() {
        eprintln!("warning: {warning}");
    }
    // Loads may need thousands of connections. If the system allows fewer, opening them fails.
    let _open_files = raise_open_files();
    let dir = options.prepare(name)?;
    let report = scenario.await?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.summary());
    }
    if let Some(dir) = dir {
        eprintln!("report    {}", report.write(&dir)?.display());
    }
    Ok(report.failures.is_empty())
}
