//! `limiter serve`: the server that decides when other processes may call rate-limited APIs (calls to partners).
//!
//! - [`engine`] decides on these calls, without network, disk or clock.
//! - `connection` reads requests; [`http`] parses them; [`service`] processes them; [`tokens`] authorizes them.
//! - [`limit_sources`] combines the limits of [`limits_file`] and of a MongoDB collection.
//! - [`sharing`] delegates decisions to a Redis server if several limiters share their limits in `exact` mode.
//! - [`saver`] writes the changes made by an API request to the [`store`] before the response is sent.
//! - [`metrics`] exports the state. Only [`app`] knows all components, and only [`config`] reads the environment.

pub mod app;
pub mod clock;
pub mod config;
mod connection;
pub mod engine;
pub mod http;
pub mod limit_sources;
pub mod limits_file;
pub mod metrics;
pub mod problem;
pub mod request;
mod response;
pub mod saver;
pub mod service;
pub mod sharing;
pub mod store;
pub mod tokens;

use std::{ffi::OsString, process::ExitCode};

use runtime::{
    metrics::Registry,
    process::{self, ProcessSignals},
};

use self::{
    app::App,
    config::{Args, Config},
};

/// Runs the server with these arguments, which include the program name but not `serve`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    process::main::<Args>(arguments, run)
}

async fn run(config: Config, signals: ProcessSignals<Args>) -> anyhow::Result<()> {
    let app = App::start(config, Registry::new()).await?;
    let drain_timeout = app.drain_timeout.clone();
    let metrics = app.services.config_reloads.clone();
    let apply = move |config: &Config| {
        drain_timeout.send_replace(config.admin.drain_timeout);
    };
    tokio::select! {
        () = signals.reload_until_drain(metrics, apply) => {}
        () = app.state_failed() => {}
    }
    app.drain().await
}
