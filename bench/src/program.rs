//! How a program that runs scenarios begins and ends: it runs one until its end or a signal, prints the outcome, and tells
//! by its exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use runtime::{
    raise_open_files,
    signals::{EXIT_INTERRUPTED, Signals},
};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::report::Environment;

/// Runs a scenario on a runtime of its own. The first signal cancels the token that it is given, the second ends the program.
///
/// The exit code is 0 when the scenario says true, 1 when it says false or fails, and 130 when it was not awaited.
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
    // Thousands of connections are a normal request; where the system allows fewer, opening them fails with its error.
    let _open_files = raise_open_files();
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let finished = runtime.block_on(async {
        let mut signals = Signals::terminate_or_hangup().context("cannot handle signals")?;
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

/// Warns on standard error when this program is not built as those that ship.
pub fn warn_of_profile() {
    if let Some(warning) = Environment::of_this_run().profile_warning() {
        eprintln!("warning: {warning}");
    }
}

/// Prints an outcome: as one JSON object, or its summary.
///
/// # Errors
/// When it cannot be written as JSON.
pub fn print<T: Serialize>(json: bool, outcome: &T, summary: impl Fn(&T) -> String) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(outcome)?);
    } else {
        println!("{}", summary(outcome));
    }
    Ok(())
}
