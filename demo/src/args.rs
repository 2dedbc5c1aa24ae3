//! The command line, and a check that its ports are free.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    num::NonZeroU64,
    path::PathBuf,
};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand, value_parser};

/// Build and start a producer and a consumer, send one sync request, look up the recorded match, and run until Ctrl-C
#[derive(Debug, Parser)]
#[command(
    name = "demo",
    bin_name = "cargo demo",
    version,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Send this many sync requests per second.
    #[arg(long, value_name = "RATE")]
    pub(crate) load: Option<NonZeroU64>,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
}

/// Further demos.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a DSP limit of 300 cookies per second while the DSP sends 600 sync requests per second
    ///
    /// Cookies over the limit are queued and released at the limit's rate. After half of the time, the limit is raised to 450 per
    /// second while the producer runs. Prints one status line per second. At the end or after Ctrl-C, prints the ledger of
    /// the limit with the outcomes of all cookies.
    Limits(LimitsArgs),
    /// Show a deletion: three sync requests of a user, the deletion, its receipt, and the lookup before and after
    Deletion(SetupArgs),
    /// Show the contract of a DSP: a redirect, a macro instead of an id, a match without consent, and an opt-out
    Contracts(SetupArgs),
    /// Show a revalidator: it checks matches with a partner that has changed some of them and lost others
    ///
    /// It checks the matches twice, and ends in less than two minutes. Its status page, on a free port, shows how its two workers
    /// vary the number of their concurrent requests.
    Revalidate(RevalidateArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct LimitsArgs {
    /// Duration of the load in seconds. The maximum wait of a cookie is a sixth of this time, and its maximum age is a third.
    #[arg(long, default_value_t = 180, value_name = "N", value_parser = value_parser!(u64).range(6..=3600))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) setup: SetupArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RevalidateArgs {
    /// Number of matches.
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = value_parser!(u32).range(100..=20_000))]
    pub(crate) matches: u32,
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
