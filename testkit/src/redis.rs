//! Starts a Redis or Valkey server on a free loopback port, without persistence.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::Result;

use crate::programs::{Process, free_address};

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server; killed on drop.
#[derive(Debug)]
pub struct Redis {
    /// The process.
    pub process: Process,
    address: SocketAddr,
}

impl Redis {
    /// Starts `program` with its log in `dir`, and waits until it accepts connections.
    ///
    /// # Errors
    /// If it does not start; includes the end of its log.
    pub async fn start(program: &Path, dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let data = dir.display().to_string();
        let args = [
            "--bind",
            &ip,
            "--port",
            &port,
            "--dir",
            &data,
            "--save",
            "",
            "--appendonly",
            "no",
        ];
        let args = args.map(str::to_owned);
        let log = dir.join("redis.log");
        let mut process = Process::start("redis-server", program, &args, &log)?;
        process.wait_accepting(address, START_TIMEOUT).await?;
        Ok(Self { process, address })
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
