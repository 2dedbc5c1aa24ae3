//! `limiter serve`: one server tells many processes when their next call to a partner may go.
//!
//! - [`engine`] is the limiter itself, without a network, a disk or a clock; whatever asks goes through it.
//! - [`service`] asks it for clients, of [`port`] by way of [`http`]; [`tokens`] says which of them may.
//! - [`limit_sources`] says which limits there are: of [`limits_file`] and of a collection.
//! - [`sharing`] has a server decide, where several limiters share their limits.
//! - [`saver`] writes what was used to the [`store`] before it is answered.
//! - [`metrics`] shows it. Only [`app`] knows all parts, and only [`config`] reads the environment.

pub mod app;
mod ask;
pub mod clock;
pub mod config;
pub mod engine;
mod feedback;
pub mod http;
pub mod limit_sources;
pub mod limits_file;
pub mod metrics;
pub mod port;
pub mod problem;
pub mod saver;
pub mod service;
pub mod sharing;
pub mod store;
pub mod tokens;

use std::{ffi::OsString, process::ExitCode};

use runtime::{
    metrics::Registry,
    process::{self, ProcessSignals},
    raise_open_files,
};

use self::{
    app::App,
    config::{Args, Config},
};

/// Runs a limiter that was started with these arguments, its own name first and without `serve`.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    process::main::<Args>(arguments, work)
}

async fn work(config: Config, orders: ProcessSignals<Args>) -> anyhow::Result<()> {
    let files = raise_open_files();
    tracing::info!(files, "starting");
    let app = App::start(config, Registry::new()).await?;
    let (runtime_config, metrics) = (app.runtime_config(), app.config_reloads());
    let apply = move |config: &Config| runtime_config.apply(config);
    tokio::select! {
        () = orders.follow(metrics, apply) => {}
        () = app.state_failed() => {}
    }
    app.drain().await
}
