//! The `bench` program: parses, runs one scenario until it ends or a signal, and tells by its exit code.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use bench::Cli;
use runtime::raise_open_files;
use tokio::{
    runtime::Builder,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

const EXIT_INTERRUPTED: u8 = 130;

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
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [mut interrupt, mut terminate, mut hangup] = install(kinds)?;
        let mut next_signal = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        };
        let stop = CancellationToken::new();
        let mut scenario = std::pin::pin!(bench::run(cli, stop.clone()));
        tokio::select! {
            finished = scenario.as_mut() => return finished.map(exit_code),
            () = next_signal() => stop.cancel(),
        }
        tokio::select! {
            finished = scenario => finished.map(exit_code),
            () = next_signal() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    finished
}

fn install(kinds: [SignalKind; 3]) -> Result<[Signal; 3]> {
    let [a, b, c] = kinds.map(|kind| signal(kind).context("cannot handle signals"));
    Ok([a?, b?, c?])
}

fn exit_code(faultless: bool) -> ExitCode {
    ExitCode::from(u8::from(!faultless))
}
