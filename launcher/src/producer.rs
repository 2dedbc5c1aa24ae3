//! A producer process: where it listens, and how it is started.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;

use crate::programs::{Process, free_address};

/// Where a producer listens: hosts and ports.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The edge.
    pub http: String,
    /// The streams.
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

/// What a producer is started with.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program.
    pub program: &'a Path,
    /// What it is called in messages; its log is the file of this name, with `.log`, in `dir`.
    pub name: String,
    /// Where it listens.
    pub addresses: Addresses,
    /// Where its log goes.
    pub dir: &'a Path,
    /// Further flags.
    pub flags: Vec<String>,
}

/// A running producer and where it listens; it is killed when this is dropped.
#[derive(Debug)]
pub struct Producer {
    /// The process.
    pub process: Process,
    /// Address of the edge.
    pub http: String,
    /// Address of the streams.
    pub grpc: String,
    /// Address of the admin port.
    pub admin: String,
}

impl Launch<'_> {
    /// Starts it.
    ///
    /// # Errors
    /// When its log cannot be written or it cannot be started.
    pub fn start(self) -> Result<Producer> {
        self.start_wrapped(|program, flags| (program.to_owned(), flags.to_owned()))
    }

    /// Starts what `wrap` makes of the program and its flags; the process id must stay the same.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_wrapped(
        self,
        wrap: impl FnOnce(&Path, &[String]) -> (PathBuf, Vec<String>),
    ) -> Result<Producer> {
        let Addresses { http, grpc, admin } = self.addresses;
        let own = ["--http", &http, "--grpc", &grpc, "--admin", &admin].map(str::to_owned);
        let flags: Vec<_> = own.into_iter().chain(self.flags).collect();
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
    /// Waits until it is ready.
    ///
    /// # Errors
    /// When it ends, or is not ready after `timeout`.
    pub async fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        self.process.wait_ready(&self.admin, timeout).await
    }
}
