//! The `producer` program: runs a producer, or checks a contracts file.

use std::{ffi::OsString, fs, process::ExitCode};

use producer::{
    app::App,
    config::{Args, Config},
    contracts::file,
};
use runtime::{
    process::{self, ProcessSignals},
    settings::info_commands,
};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    match &arguments[..] {
        [_, command, arguments @ ..] if command == "contracts" => {
            info_commands::print(check_contracts(arguments))
        }
        _ => process::main::<Args>(arguments, serve),
    }
}

/// The effective contracts, or all errors of the file.
fn check_contracts(arguments: &[OsString]) -> Result<Vec<u8>, String> {
    let path = match arguments {
        [check, path] if check == "check" => path,
        _ => return Err("usage: producer contracts check FILE".to_owned()),
    };
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    match file::parse(&text) {
        Ok(contracts) => Ok(contracts.to_string().into_bytes()),
        Err(errors) => Err(format!("{name} is invalid:\n{errors}")),
    }
}

async fn serve(config: Config, signals: ProcessSignals<Args>) -> anyhow::Result<()> {
    let app = App::start(config).await?;
    let (runtime_config, metrics) = (
        app.runtime_config.clone(),
        app.services.config_reloads.clone(),
    );
    let apply = move |config: &Config| runtime_config.apply(config);
    signals.reload_until_drain(metrics, apply).await;
    app.drain().await
}
