//! `cargo demo`: the real programs together on one machine, one sync on its way through them; and
//! `cargo demo limits`: what a limit does with more than it lets through.
//!
//! It is what a newcomer builds first, so it links little: producer and consumer are processes, built beside it, and so is
//! what sends a load.

mod args;
mod limits;
mod running;
mod show;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Parser as _;
use tokio::{
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::args::{Args, Other};

const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = Runtime::new().context("cannot start").and_then(|runtime| {
        let ended = runtime.block_on(until_told(&args));
        // A build that goes on must not hold up the end.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the demonstration until a signal tells it to end; a second one ends it at once.
async fn until_told(args: &Args) -> Result<ExitCode> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut told = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    };
    let stop = CancellationToken::new();
    let demo = async {
        match &args.other {
            None => show::run(args, &stop).await,
            Some(Other::Limits(args)) => limits::run(args, &stop).await,
        }
    };
    let mut demo = std::pin::pin!(demo);
    tokio::select! {
        ended = demo.as_mut() => return ended.map(|()| ExitCode::SUCCESS),
        () = told() => stop.cancel(),
    }
    tokio::select! {
        ended = demo => ended.map(|()| ExitCode::SUCCESS),
        () = told() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
    }
}
