//! The producer process: settings, start, signals, drain, exit code.

use std::process::ExitCode;

use producer::{
    app::App,
    config::{Args, Config},
};
use runtime::{
    logging,
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
            // A file system that hangs must not delay the exit.
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
    let (drain, stopped) = (CancellationToken::new(), CancellationToken::new());
    let signals = drain_on_signals(drain.clone(), stopped.clone())?;
    let work = async {
        let worked = work(settings, hangups, drain).await;
        stopped.cancel();
        worked
    };
    let (worked, ()) = tokio::join!(work, signals);
    worked
}

async fn work(
    settings: Loaded<Args>,
    hangups: Signals,
    drain: CancellationToken,
) -> anyhow::Result<()> {
    let renewal = Renewal::of(&settings);
    let app = App::start(settings.config).await?;
    let (runtime_config, metrics) = (app.runtime_config(), app.renewals());
    let apply = move |config: &Config| runtime_config.apply(config);
    let renewing = renewal.run::<Args>(hangups, metrics, apply, drain.clone());
    tokio::join!(renewing, drain.cancelled());
    Ok(app.drain().await?)
}
