//! The producer process.

use std::process::ExitCode;

use producer::{
    app::App,
    config::{Args, Config},
};
use runtime::process::{self, ProcessSignals};

fn main() -> ExitCode {
    process::main::<Args>(std::env::args_os(), serve)
}

async fn serve(config: Config, signals: ProcessSignals<Args>) -> anyhow::Result<()> {
    let app = App::start(config).await?;
    let (runtime_config, metrics) = (app.runtime_config(), app.services.config_reloads.clone());
    let apply = move |config: &Config| runtime_config.apply(config);
    signals.reload_until_drain(metrics, apply).await;
    Ok(app.drain().await?)
}
