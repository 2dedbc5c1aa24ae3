//! The `bench` program: parses, runs one scenario until it ends or a signal, and tells by its exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use bench::Cli;
use runtime::{
    raise_open_files,
    signals::{EXIT_INTERRUPTED, Signals},
};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let finished = try_main(cli);
    finished.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn try_main(cli: Cli) -> Result<ExitCode> {
    // Thousands of connections are a normal request; a system that allows fewer says so when they are opened.
    let _open_files = raise_open_files();
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let finished = runtime.block_on(async {
        let mut signals = Signals::end_or_hangup().context("cannot handle signals")?;
        let stop = CancellationToken::new();
        let mut scenario = std::pin::pin!(bench::run(cli, stop.clone()));
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

fn exit_code(faultless: bool) -> ExitCode {
    ExitCode::from(u8::from(!faultless))
}
