//! The command line, and a check that its ports are free.

use std::{
    net::{SocketAddr, TcpListener},
    num::NonZeroU64,
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use clap::Parser;

/// Build and start a producer and a consumer, send one sync request, look up the recorded match, and run until Ctrl-C
#[derive(Debug, Parser)]
#[command(name = "demo", bin_name = "cargo demo", version)]
pub(crate) struct Args {
    /// Send this many sync requests per second.
    #[arg(long, value_name = "RATE")]
    pub(crate) load: Option<NonZeroU64>,
    /// Address of the producer for sync requests.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) http: SocketAddr,
    /// Address of the producer for gRPC streams.
    #[arg(long, default_value = "127.0.0.1:7676")]
    pub(crate) grpc: SocketAddr,
    /// Address of the producer's admin port (metrics, health).
    #[arg(long, default_value = "127.0.0.1:9090")]
    pub(crate) producer_admin: SocketAddr,
    /// Address of the consumer's admin port (lookup, metrics, health).
    #[arg(long, default_value = "127.0.0.1:9091")]
    pub(crate) consumer_admin: SocketAddr,
    /// New or empty directory for the store and logs [default: target/demo, which is emptied].
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

impl Args {
    /// Checks that all ports are free.
    ///
    /// # Errors
    /// Names the first port that is not, and the flag to change it.
    pub(crate) fn check_ports(&self) -> Result<()> {
        for (address, flag) in [
            (self.http, "--http"),
            (self.grpc, "--grpc"),
            (self.producer_admin, "--producer-admin"),
            (self.consumer_admin, "--consumer-admin"),
        ] {
            TcpListener::bind(address).with_context(|| {
                format!("{address} is not usable; choose another address with {flag}")
            })?;
        }
        Ok(())
    }
}
