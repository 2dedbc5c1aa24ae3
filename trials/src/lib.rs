//! Scenarios for developers: long runs under faults, and measurements of a store.
//!
//! [`soak`] runs the whole system at one rate under faults and verifies every store. [`store`] measures how fast the consumer's code
//! writes to a store. Both are scenarios like those of [`bench`](mod@bench) and use its modules.
//!
//! Neighboring directories contain tests: `tests/it` runs the real programs, `sim` uses a simulated network and clock,
//! `interleavings` runs the log under many thread schedules, and `fuzz` covers parsers of untrusted input. `brokers`, a
//! separate workspace, compares the producer with NATS and Redis.

pub mod soak;
pub mod store;

use anyhow::Result;
use bench::program::{print, warn_of_profile};
use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;

/// Test cookiesync under faults, and measure its stores.
#[derive(Debug, Parser)]
#[command(name = "trials", version = runtime::VERSION, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  Run for ten minutes with all faults, and verify every store:
    trials soak --store mixed --consumers 2 --producers 2 --all-faults";

#[derive(Debug, Subcommand)]
enum Command {
    Soak(Box<soak::SoakArgs>),
    Store(Box<store::StoreArgs>),
}

/// Runs the scenario of the command line to its end, or until `stop`, and prints its report; true if all checks passed.
///
/// # Errors
/// The scenario cannot be run.
pub async fn run(cli: Cli, stop: CancellationToken) -> Result<bool> {
    warn_of_profile();
    match cli.command {
        Command::Soak(args) => {
            let outcome = soak::run(&args, &stop).await?;
            print(args.report.json, &outcome, soak::SoakOutcome::summary)?;
            Ok(outcome.failures.is_empty())
        }
        Command::Store(args) => {
            let outcome = store::run(&args, &stop, |line| eprintln!("{line}")).await?;
            print(args.json, &outcome, store::StoreOutcome::summary)?;
            Ok(outcome.failures.is_empty())
        }
    }
}
