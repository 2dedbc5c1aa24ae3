//! `cargo demo` runs a producer and a consumer and sends a sync request through them.
//!
//! This crate has few dependencies, because newcomers build it first. Producer, consumer and load generator are separate
//! processes.

mod args;
mod processes;
mod show;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::args::Args;

const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = Runtime::new()
        .context("failed to start the runtime")
        .and_then(|runtime| {
            let result = runtime.block_on(run_until_signal(&args));
            // A running build must not delay the exit.
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demo until a shutdown signal; a second one exits immediately.
async fn run_until_signal(args: &Args) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut shutdown_signal = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    };
    let stop = CancellationToken::new();
    let mut demo = std::pin::pin!(show::run(args, &stop));
    tokio::select! {
        result = demo.as_mut() => return result.map(|()| ExitCode::SUCCESS),
        () = shutdown_signal() => stop.cancel(),
    }
    tokio::select! {
        result = demo => result.map(|()| ExitCode::SUCCESS),
        () = shutdown_signal() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
    }
}
