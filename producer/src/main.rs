//! The producer process: settings, start, signals, drain, exit code.

use std::process::ExitCode;

use cookiesync::process::{drain_on_signals, init_logging};
use producer::{app::App, config::Config};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let config = Config::load(std::env::args_os()).unwrap_or_else(|error| error.exit());
    init_logging();
    let result = Runtime::new()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(config));
            // A file system that hangs must not hold up the end.
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
    let (drain, stopped) = (CancellationToken::new(), CancellationToken::new());
    let signals = drain_on_signals(drain.clone(), stopped.clone())?;
    let work = async {
        let app = App::start(config).await?;
        drain.cancelled().await;
        let drained = app.drain().await;
        stopped.cancel();
        anyhow::Ok(drained?)
    };
    let (worked, ()) = tokio::join!(
        async {
            let worked = work.await;
            stopped.cancel();
            worked
        },
        signals
    );
    worked
}
