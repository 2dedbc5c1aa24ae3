//! The producer process.

use std::process::ExitCode;

use producer::{
    app::App,
    config::{Args, Config},
};
use runtime::process::{self, Orders};

fn main() -> ExitCode {
    process::main::<Args>(std::env::args_os(), work)
}

async fn work(config: Config, orders: Orders<Args>) -> anyhow::Result<()> {
    let app = App::start(config).await?;
    let (runtime_config, metrics) = (app.runtime_config(), app.config_reloads());
    let apply = move |config: &Config| runtime_config.apply(config);
    orders.follow(metrics, apply).await;
    Ok(app.drain().await?)
}
