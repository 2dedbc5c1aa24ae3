//! The command line, and a check that its ports are free.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    num::NonZeroU64,
    path::PathBuf,
};

use anyhow::{Result, ensure};
use clap::Parser;

/// Build and start a producer and a consumer, send one sync request, look up the recorded match, and run until Ctrl-C
#[derive(Debug, Parser)]
#[command(name = "demo", bin_name = "cargo demo", version)]
pub(crate) struct Args {
    /// Send this many sync requests per second.
    #[arg(long, value_name = "RATE")]
    pub(crate) load: Option<NonZeroU64>,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
}

/// Addresses and directory of the processes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SetupArgs {
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
    /// Directory for the store and logs; it is emptied if it belongs to a previous demo [default: target/demo].
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

impl SetupArgs {
    /// Checks that all ports are free.
    ///
    /// # Errors
    /// Lists all ports in use, each with the flag to change it.
    pub(crate) fn check_ports(&self) -> Result<()> {
        let (producer, consumer) = (self.producer_admin, self.consumer_admin);
        let addresses = [
            (self.http, "--http", "sync requests"),
            (self.grpc, "--grpc", "gRPC streams"),
            (producer, "--producer-admin", "the producer's admin port"),
            (consumer, "--consumer-admin", "the consumer's admin port"),
        ];
        let mut problems = Vec::new();
        for (index, (address, flag, what)) in addresses.iter().enumerate() {
            let duplicate = addresses[..index].iter().find(|other| other.0 == *address);
            if let Some((_, other, _)) = duplicate {
                problems.push(format!("{address} is set by both {other} and {flag}"));
                continue;
            }
            match TcpListener::bind(address) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => problems.push(format!(
                    "{address} ({what}) is in use by another process; choose another, for example {flag} {}",
                    SocketAddr::new(address.ip(), address.port().wrapping_add(10_000))
                )),
                Err(error) => problems.push(format!(
                    "{address} ({what}) is not usable: {error}; choose another with {flag}"
                )),
            }
        }
        let problems = problems.join("\n  ");
        ensure!(problems.is_empty(), "no process was started:\n  {problems}");
        Ok(())
    }
}

/// The address to connect to for a listening `address`: loopback if it listens on all interfaces.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
