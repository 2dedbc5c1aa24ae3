//! Starts a producer process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

use crate::programs::{Process, flag_value, free_address};

/// Listening addresses of a producer.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// HTTP port of the edge.
    pub http: String,
    /// gRPC port of the streams.
    pub grpc: String,
    /// The admin port.
    pub admin: String,
}

impl Addresses {
    /// Three free loopback addresses.
    ///
    /// # Errors
    /// As [`free_address`].
    pub fn free() -> Result<Self> {
        Ok(Self {
            http: free_address()?.to_string(),
            grpc: free_address()?.to_string(),
            admin: free_address()?.to_string(),
        })
    }
}

/// Parameters for starting a producer.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Path,
    /// Name in messages; the log file is `NAME.log` in `dir`.
    pub name: String,
    /// Addresses to listen on.
    pub addresses: Addresses,
    /// Directory of its log.
    pub dir: &'a Path,
    /// Additional flags.
    pub flags: Vec<String>,
}

/// A running producer with its addresses; killed on drop.
#[derive(Debug)]
pub struct Producer {
    /// The process.
    pub process: Process,
    /// HTTP address of the edge.
    pub http: String,
    /// gRPC address of the streams.
    pub grpc: String,
    /// Address of the admin port.
    pub admin: String,
}

impl Launch<'_> {
    /// Starts the producer.
    ///
    /// # Errors
    /// If the log cannot be written or the program does not start.
    pub fn start(self) -> Result<Producer> {
        self.start_wrapped(|program, flags| (program.to_owned(), flags.to_owned()))
    }

    /// Starts the command that `wrap` derives from the program and its flags. The process id must stay the same.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_wrapped(
        self,
        wrap: impl FnOnce(&Path, &[String]) -> (PathBuf, Vec<String>),
    ) -> Result<Producer> {
        let Addresses { http, grpc, admin } = self.addresses;
        let own = ["--http", &http, "--grpc", &grpc, "--admin", &admin].map(str::to_owned);
        let mut flags: Vec<_> = own.into_iter().chain(self.flags).collect();
        let is_loopback = |it: SocketAddr| it.ip().is_loopback();
        if !grpc.parse().is_ok_and(is_loopback)
            && flag_value(&flags, "--token-file").is_none()
            && flag_value(&flags, "--tls-client-ca").is_none()
        {
            flags.push("--grpc-insecure".to_owned());
        }
        let (program, flags) = wrap(self.program, &flags);
        let log = self.dir.join(format!("{}.log", self.name));
        Ok(Producer {
            process: Process::start(&self.name, &program, &flags, &log)?,
            http,
            grpc,
            admin,
        })
    }
}

impl Producer {
    /// Waits until the producer is ready.
    ///
    /// # Errors
    /// If it exits, or is not ready after `timeout`.
    pub async fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        self.process.wait_ready(&self.admin, timeout).await
    }
}
