//! The command line, and whether its ports are free.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    num::NonZeroU64,
    path::PathBuf,
};

use anyhow::{Result, bail};
use clap::{Parser, Subcommand, value_parser};

/// Builds and starts a producer and a consumer, and shows a sync on its way through them, until Ctrl-C.
#[derive(Debug, Parser)]
#[command(
    name = "demo",
    bin_name = "cargo demo",
    version,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) other: Option<Other>,
    /// Add a load of this many sync requests a second, and show a line about it each second.
    #[arg(long, value_name = "RATE")]
    pub(crate) load: Option<NonZeroU64>,
    #[command(flatten)]
    pub(crate) places: Places,
}

/// Another demonstration.
#[derive(Debug, Subcommand)]
pub(crate) enum Other {
    /// Shows what a limit does: one DSP sends 600 sync requests a second and may send 300.
    ///
    /// What is over the limit waits, and is released at the limit's rate. At half time the limit becomes 450 a second, while the
    /// producer runs. A line each second says what comes, goes and waits; at the end, or after Ctrl-C, the ledger of
    /// the limit says what became of every cookie.
    Limits(LimitsArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitsArgs {
    /// How long to send. A cookie waits for at most a sixth of this, and is a dead letter after a third of it.
    #[arg(long, default_value_t = 180, value_name = "N", value_parser = value_parser!(u64).range(6..=3600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) places: Places,
}

/// Where the processes listen and write.
#[derive(Debug, clap::Args)]
pub(crate) struct Places {
    /// Where the producer takes sync requests.
    #[arg(long, default_value = "127.0.0.1:8080")]
    pub(crate) http: SocketAddr,
    /// Where the producer serves gRPC streams.
    #[arg(long, default_value = "127.0.0.1:7676")]
    pub(crate) grpc: SocketAddr,
    /// The producer's admin port: metrics, health.
    #[arg(long, default_value = "127.0.0.1:9090")]
    pub(crate) producer_admin: SocketAddr,
    /// The consumer's admin port: lookup, metrics, health.
    #[arg(long, default_value = "127.0.0.1:9091")]
    pub(crate) consumer_admin: SocketAddr,
    /// Directory for the store and the logs; the previous demonstration's are removed [default: target/demo].
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

impl Places {
    fn addresses(&self) -> [(SocketAddr, &'static str, &'static str); 4] {
        [
            (self.http, "--http", "sync requests"),
            (self.grpc, "--grpc", "gRPC streams"),
            (
                self.producer_admin,
                "--producer-admin",
                "the producer's admin port",
            ),
            (
                self.consumer_admin,
                "--consumer-admin",
                "the consumer's admin port",
            ),
        ]
    }

    /// Whether every port can be had.
    ///
    /// # Errors
    /// With every one that is taken in one message, each with the flag that moves it.
    pub(crate) fn check_ports(&self) -> Result<()> {
        let addresses = self.addresses();
        let mut problems = Vec::new();
        for (index, (address, flag, what)) in addresses.iter().enumerate() {
            let twice = addresses[..index].iter().find(|other| other.0 == *address);
            if let Some((_, other, _)) = twice {
                problems.push(format!("{address} is given to both {other} and {flag}"));
                continue;
            }
            match TcpListener::bind(address) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => problems.push(format!(
                    "{address}, for {what}, is taken by another process: move it with {flag} {}",
                    SocketAddr::new(address.ip(), address.port().wrapping_add(10_000))
                )),
                Err(error) => problems.push(format!(
                    "{address}, for {what}, cannot be used ({error}): choose another with {flag}"
                )),
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            bail!("nothing was started\n  {}", problems.join("\n  "))
        }
    }
}

/// Where to reach what listens on `address`: the loopback address when that is all of them.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}
