//! Runs a command-line program: runtime, signals and exit code.

use std::{pin::pin, process::ExitCode, time::Duration};

use anyhow::Result;
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

/// Exit code after a second signal.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs `main` on its own runtime. The first SIGINT, SIGTERM or SIGHUP cancels its token; the second ends the program.
///
/// The exit code is 0 if `main` returns true, 1 if it returns false or an error, and 130 after a second signal.
pub fn run<F>(main: impl FnOnce(CancellationToken) -> F) -> ExitCode
where
    F: Future<Output = Result<bool>>,
{
    try_run(main).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn try_run<F>(main: impl FnOnce(CancellationToken) -> F) -> Result<ExitCode>
where
    F: Future<Output = Result<bool>>,
{
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let finished = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut next_signal = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        };
        let stop = CancellationToken::new();
        let mut main = pin!(main(stop.clone()));
        tokio::select! {
            finished = main.as_mut() => return finished.map(exit_code),
            () = next_signal() => stop.cancel(),
        }
        tokio::select! {
            finished = main => finished.map(exit_code),
            () = next_signal() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        }
    });
    // Blocking work, such as a build, must not delay the exit.
    runtime.shutdown_timeout(Duration::from_millis(100));
    finished
}

fn exit_code(has_passed: bool) -> ExitCode {
    ExitCode::from(u8::from(!has_passed))
}
