//! What only developers run: long runs under faults, and a store by itself.
//!
//! [`soak`] drives the whole system at one rate for long, with failures, and verifies every store. [`store`] writes cookies into a store as
//! the consumer does, beside what the store can do at best. Both are scenarios as those of [`bench`](mod@bench), and made of its parts.
//! Beside them lie the trials that are tests: `tests/it` runs everything for real, `sim`
//! on a simulated network and clock, `interleavings` the log's own source under many thread schedules, and `fuzz` what reads
//! outsiders' bytes; and `peers`, a workspace of its own, compares ours with NATS and Redis.

pub mod soak;
pub mod store;

use anyhow::Result;
use bench::program::{print, warn_of_profile};
use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;

/// Tries cookiesync under faults, and measures its stores.
#[derive(Debug, Parser)]
#[command(name = "trials", version = runtime::VERSION, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Ten minutes with all faults, and every store read in the end:
    trials soak --store mixed --consumers 2 --producers 2 --all-faults";

#[derive(Debug, Subcommand)]
enum Command {
    Soak(Box<soak::SoakArgs>),
    Store(Box<store::StoreArgs>),
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
            print(args.report.json, &outcome, soak::SoakOutcome::summary)?;
            Ok(outcome.has_passed())
        }
        Command::Store(args) => {
            let outcome = store::run(&args, &stop, |line| eprintln!("{line}")).await?;
            print(args.json, &outcome, store::StoreOutcome::summary)?;
            Ok(outcome.failures.is_empty())
        }
    }
}
