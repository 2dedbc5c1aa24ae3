//! The producer process: settings, start, signals, drain, exit code.

use std::process::ExitCode;

use cookiesync::process::{drain_on_signals, init_logging};
use producer::{app::App, config::Config};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let config = Config::load(std::env::args_os()).unwrap_or_else(|error| error.exit());
    init_logging();
    match run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
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
