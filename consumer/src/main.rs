//! The consumer process.

use std::process::ExitCode;

use consumer::{Config, app::App, config::Args};
use runtime::{
    metrics::Registry,
    process::{self, ProcessSignals},
};

fn main() -> ExitCode {
    process::main::<Args>(std::env::args_os(), serve)
}

async fn serve(config: Config, signals: ProcessSignals<Args>) -> anyhow::Result<()> {
    let app = tokio::select! {
        // Opening a large store may take long. A drain can end here, because no cookie was received yet.
        () = signals.drain.cancelled() => return Ok(()),
        app = App::start(config, Registry::new()) => app?,
    };
    let (runtime_config, metrics) = (app.runtime_config(), app.services.config_reloads.clone());
    let apply = move |config: &Config| runtime_config.apply(config);
    let failed = tokio::select! {
        () = signals.reload_until_drain(metrics, apply) => None,
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
