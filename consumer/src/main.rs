//! The consumer process.

use std::process::ExitCode;

use consumer::{Config, app::App, config::Args};
use runtime::{
    metrics::Registry,
    process::{self, ProcessSignals},
    raise_open_files,
};

fn main() -> ExitCode {
    process::main::<Args>(std::env::args_os(), work)
}

async fn work(config: Config, orders: ProcessSignals<Args>) -> anyhow::Result<()> {
    let files = raise_open_files();
    tracing::info!(?config, files, "starting");
    let app = tokio::select! {
        // Opening a large store may take long; nothing was received yet.
        () = orders.drain.cancelled() => return Ok(()),
        app = App::start(config, Registry::new()) => app?,
    };
    let (runtime_config, metrics) = (app.runtime_config(), app.config_reloads());
    let apply = move |config: &Config| runtime_config.apply(config);
    let failed = tokio::select! {
        () = orders.follow(metrics, apply) => None,
        error = app.failed() => Some(error),
    };
    match failed {
        None => app.drain().await,
        Some(error) => {
            app.stop_at_once().await;
            Err(error)
        }
    }
}
