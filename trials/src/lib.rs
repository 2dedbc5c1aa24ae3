//! Scenarios for developers: long runs under faults, and a comparison with other systems.
//!
//! [`soak`] runs the whole system at one rate under faults and verifies every store. [`brokers`] compares the producer with NATS
//! and Redis. Both are scenarios like those of [`bench`](mod@bench) and use its modules.
//!
//! Neighboring directories contain tests: `tests/it` runs the real programs, `sim` uses a simulated network and clock,
//! `interleavings` runs the log under many thread schedules, and `fuzz` covers parsers of untrusted input.

pub mod brokers;
pub mod soak;

use anyhow::Result;
use bench::program::run_scenario;
use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;

/// Test cookiesync under faults, and compare it with other systems.
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
    Brokers(Box<brokers::BrokersArgs>),
}

/// Runs the scenario of the command line to its end, or until `stop`, and prints its report; true if all checks passed.
///
/// # Errors
/// The scenario cannot be run.
pub async fn run(cli: Cli, stop: CancellationToken) -> Result<bool> {
    match cli.command {
        Command::Soak(args) => {
            let run = Box::pin(soak::run(&args, &stop));
            run_scenario("soak", &args.report, run).await
        }
        Command::Brokers(args) => {
            let run = Box::pin(brokers::run(&args, &stop));
            run_scenario("brokers", &args.report, run).await
        }
    }
}
