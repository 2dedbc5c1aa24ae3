//! The library of the program `revalidator`.
//!
//! A job is a list of assets. A maker sends the assets in batches to workers through a message broker, and counts the results. Workers
//! check each asset with a conditional request to its origin, replace or remove stored objects, and publish results.
//!
//! - [`messages`] are the objects on the broker; [`engine`] is the broker, and [`mirror`] is a copy of its buckets.
//! - [`jobs`], [`concurrency`], [`outcome`] and [`digest`] make decisions without network, disk or clock.
//! - A [`maker`] creates jobs on a [`schedule`], and transmits the assets of a [`source`].
//! - A [`worker`] takes a job with a [`lease`] and checks its batches ([`batch`]) with requests to an [`origin`], within the limits of
//!   a [`limiter`]. It changes [`contents`], or [`matches`](mod@matches) through other [`servers`].
//! - [`apps`] reads the applications file, [`config`] reads the other settings, and [`client`] contains the common code of HTTP
//!   clients.
//! - [`http`] is the API, [`problem`] defines its error types, and [`metrics`] defines the metrics.
//!
//! Only [`program`] uses all of them.

pub mod apps;
pub mod batch;
pub mod client;
pub mod concurrency;
pub mod config;
pub mod contents;
pub mod digest;
pub mod engine;
pub mod http;
pub mod jobs;
pub mod lease;
pub mod limiter;
pub mod maker;
pub mod matches;
pub mod messages;
pub mod metrics;
pub mod mirror;
pub mod origin;
pub mod outcome;
pub mod problem;
pub mod program;
pub mod schedule;
pub mod servers;
pub mod source;
#[cfg(test)]
#[path = "tests/server.rs"]
mod test_server;
mod values;
pub mod worker;

use std::{ffi::OsString, process::ExitCode};

use runtime::{
    metrics::Registry,
    process::{self, ProcessSignals},
};

use self::{
    config::{Args, Config},
    program::Program,
};

/// Runs the server with these arguments, program name first.
pub fn serve(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    process::main::<Args>(arguments, run)
}

async fn run(config: Config, signals: ProcessSignals<Args>) -> anyhow::Result<()> {
    let mut program = Program::start(config, &Registry::new())?;
    let drain_timeout = program.drain_timeout.clone();
    let metrics = program.services.config_reloads.clone();
    let apply = move |config: &Config| {
        drain_timeout.send_replace(config.args.admin.drain_timeout);
    };
    let result = tokio::select! {
        () = signals.reload_until_drain(metrics, apply) => Ok(()),
        error = program.failed() => Err(error),
    };
    program.drain().await;
    result
}
