//! The producer process.

use std::process::ExitCode;

use producer::{
    app::App,
    config::{Args, Config},
};
use runtime::process::{self, ProcessSignals};

fn main() -> ExitCode {
    process::main::<Args>(std::env::args_os(), work)
}

async fn work(config: Config, orders: ProcessSignals<Args>) -> anyhow::Result<()> {
    let app = App::start(config).await?;
    let (runtime_config, metrics) = (app.runtime_config(), app.config_reloads());
    let apply = move |config: &Config| runtime_config.apply(config);
    orders.follow(metrics, apply).await;
    Ok(app.drain().await?)
}
