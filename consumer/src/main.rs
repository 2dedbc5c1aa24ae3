//! The consumer process: settings, start, signals, drain, exit code.

use std::process::ExitCode;

use consumer::{Config, app::App};
use cookiesync::process::{drain_on_signals, init_logging, metrics::Registry, raise_open_files};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let config = Config::load(std::env::args_os()).unwrap_or_else(|error| error.exit());
    init_logging();
    let result = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(config));
            // What the store still does in the background must not hold up the end.
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let files = raise_open_files();
    tracing::info!(%config, files, "starting");
    let (drain, stopped) = (CancellationToken::new(), CancellationToken::new());
    let signals = drain_on_signals(drain.clone(), stopped.clone())?;
    let work = async {
        let worked = work(drain, config).await;
        stopped.cancel();
        worked
    };
    let (worked, ()) = tokio::join!(work, signals);
    worked
}

async fn work(drain: CancellationToken, config: Config) -> anyhow::Result<()> {
    let app = tokio::select! {
        // Opening a large store may take long; nothing was received yet.
        () = drain.cancelled() => return Ok(()),
        app = App::start(config, Registry::new()) => app?,
    };
    tokio::select! {
        () = drain.cancelled() => app.drain().await,
        error = app.failed() => {
            app.stop_at_once().await;
            Err(error)
        }
    }
}
