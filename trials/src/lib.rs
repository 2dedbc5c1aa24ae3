//! What only developers run: long runs under faults, and the comparison with other systems.
//!
//! - [`soak`] drives the whole system at one rate for long, with faults, and verifies every store;
//! - [`peers`] compares ours with NATS, Redis and RabbitMQ.
//!
//! They are scenarios as those of [`bench`](mod@bench), and made of its parts. Beside them lie the trials that are tests: `tests/it` runs
//! everything for real, `sim` on a simulated network and clock, `interleavings` the log's own source under many thread schedules,
//! and `fuzz` what reads outsiders' bytes.

pub mod peers;
pub mod soak;

use anyhow::Result;
use bench::{
    program::{print, warn_of_profile},
    report::leave,
};
use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;

/// Tries cookiesync under faults, and beside other systems.
#[derive(Debug, Parser)]
#[command(name = "trials", version = runtime::VERSION, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Ten minutes with all faults, and every store read in the end:
    trials soak --store mixed --consumers 2 --producers 2 --all-faults

  The same cookies through what else is installed here:
    trials peers";

#[derive(Debug, Subcommand)]
enum Command {
    Soak(Box<soak::SoakArgs>),
    Peers(peers::PeersArgs),
    /// The subscribers of one step of `peers`.
    #[command(hide = true)]
    PeersReader(peers::ReaderArgs),
    /// The publisher of one step of `peers`.
    #[command(hide = true)]
    PeersPublisher(peers::PublisherArgs),
}

/// Runs what the command line asks for, until it ends or `stop`, and prints its report.
///
/// True when nothing was wrong.
///
/// # Errors
/// When the scenario could not do its work.
pub async fn run(cli: Cli, stop: CancellationToken) -> Result<bool> {
    warn_of_profile();
    match cli.command {
        Command::Soak(args) => {
            let outcome = soak::run(&args, &stop).await?;
            print(args.report.json, &outcome, soak::Outcome::summary)?;
            Ok(outcome.is_faultless())
        }
        Command::Peers(args) => {
            let folder = args.report.prepare("peers")?;
            let outcome = peers::run(&args, &stop, |line| eprintln!("{line}")).await?;
            print(args.report.json, &outcome, peers::Outcome::summary)?;
            leave(folder, || outcome.report())?;
            Ok(outcome.is_faultless())
        }
        Command::PeersReader(args) => peers::read(&args, &stop).await.map(|()| true),
        Command::PeersPublisher(args) => peers::publish(&args, &stop).await.map(|()| true),
    }
}
