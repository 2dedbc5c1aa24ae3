//! The consumer process: settings, start, signals, drain, exit code.

use std::process::ExitCode;

use consumer::{Config, app::App, config::Args};
use runtime::{
    logging,
    metrics::Registry,
    raise_open_files,
    settings::{Loaded, instead, renewal::Renewal},
    signals::{Signals, drain_on_signals},
};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: heap::Allocator = heap::Allocator;

fn main() -> ExitCode {
    let settings = match instead::begin::<Args>(std::env::args_os()) {
        Ok(settings) => settings,
        Err(code) => return code,
    };
    let common = &settings.config.common;
    if common.debug_endpoints {
        heap::start();
    }
    let _flush = match logging::init(&common.log_filter, common.log_format) {
        Ok(flush) => flush,
        Err(error) => {
            eprintln!("error: there is no thread for the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(settings));
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

async fn run(settings: Loaded<Args>) -> anyhow::Result<()> {
    let hangups = Signals::hangup()?;
    let files = raise_open_files();
    tracing::info!(config = %settings.config, files, "starting");
    let (drain, stopped) = (CancellationToken::new(), CancellationToken::new());
    let signals = drain_on_signals(drain.clone(), stopped.clone())?;
    let work = async {
        let worked = work(drain, hangups, settings).await;
        stopped.cancel();
        worked
    };
    let (worked, ()) = tokio::join!(work, signals);
    worked
}

async fn work(
    drain: CancellationToken,
    hangups: Signals,
    settings: Loaded<Args>,
) -> anyhow::Result<()> {
    let renewal = Renewal::of(&settings);
    let app = tokio::select! {
        // Opening a large store may take long; nothing was received yet.
        () = drain.cancelled() => return Ok(()),
        app = App::start(settings.config, Registry::new()) => app?,
    };
    let (live, metrics) = (app.live(), app.renewals());
    let apply = move |config: &Config| live.apply(config);
    let renewing = renewal.run::<Args>(hangups, metrics, apply, drain.clone());
    let failed = tokio::select! {
        ((), ()) = async { tokio::join!(renewing, drain.cancelled()) } => None,
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
