//! Start and end of a program that runs scenarios: runtime, signals, output and exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use runtime::{
    raise_open_files,
    signals::{EXIT_INTERRUPTED, Signals},
};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::report::{Environment, Report, ReportArgs};

/// Runs a scenario on its own runtime. The first signal cancels its token; the second ends the program.
///
/// The exit code is 0 if the scenario returns true, 1 if it returns false or an error, and 130 after a second signal.
pub fn run<S>(scenario: impl FnOnce(CancellationToken) -> S) -> ExitCode
where
    S: Future<Output = Result<bool>>,
{
    try_run(scenario).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn try_run<S>(scenario: impl FnOnce(CancellationToken) -> S) -> Result<ExitCode>
where
    S: Future<Output = Result<bool>>,
{
    // Loads may need thousands of connections. If the system allows fewer, opening them fails.
    let _open_files = raise_open_files();
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let finished = runtime.block_on(async {
        let mut signals =
            Signals::terminate_or_hangup().context("failed to install signal handlers")?;
        let stop = CancellationToken::new();
        let mut scenario = std::pin::pin!(scenario(stop.clone()));
        tokio::select! {
            finished = scenario.as_mut() => return finished.map(exit_code),
            () = signals.next() => stop.cancel(),
        }
        tokio::select! {
            finished = scenario => finished.map(exit_code),
            () = signals.next() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    finished
}

fn exit_code(has_passed: bool) -> ExitCode {
    ExitCode::from(u8::from(!has_passed))
}

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
