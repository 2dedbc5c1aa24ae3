//! Load generation, measurement and verification.
//!
//! Each scenario is a function that takes arguments and a cancellation token, and returns an outcome:
//!
//! - [`load`] sends sync requests and checks every response;
//! - [`lookup`] looks up users in consumers, Redis and MongoDB, and checks every answer;
//! - [`subscribe`] opens many streams, checks that every cookie arrives or is declared lost, and measures the cost of a stream;
//! - [`e2e`] runs the whole system at increasing rates and verifies every store.
//!
//! The scenarios, and those of `trials`, share the other modules: cookies generated from a seed ([`traffic`]), verification of
//! stores ([`verify`]), and reports ([`report`]), which [`program`] prints and writes. `testkit` starts and observes the processes.

pub mod e2e;
pub mod load;
pub mod lookup;
pub mod program;
pub mod report;
pub mod subscribe;
pub mod traffic;
pub mod values;
pub mod verify;

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use runtime::settings::info_commands::{self, AboutArgs};
use tokio_util::sync::CancellationToken;

use crate::program::run_scenario;

/// Measure cookiesync.
#[derive(Debug, Parser)]
#[command(name = "bench", version = runtime::VERSION, arg_required_else_help = true, after_long_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    about: AboutArgs,
}

const EXAMPLES: &str = "\
Examples:
  Measure the capacity of this machine with a temporary mongod, and verify the stored cookies:
    bench e2e

  Send 20,000 requests per second for a minute, as an open loop:
    bench load --url http://127.0.0.1:8080/ -l 20000 --duration 1m

  List the flags of a scenario:
    bench load --help";

impl Cli {
    /// Parses a command line, which starts with the program name.
    ///
    /// # Errors
    /// The exit code, if no scenario is to be run. Help, version or errors have been printed.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        let command = Self::command();
        let matches = command.clone().get_matches_from(arguments);
        if let Some(output) = info_commands::documentation(&command, &matches) {
            return Err(info_commands::print(output));
        }
        Ok(Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(Box<load::LoadArgs>),
    Lookup(Box<lookup::LookupArgs>),
    Subscribe(Box<subscribe::SubscribeArgs>),
    E2e(Box<e2e::E2eArgs>),
}

/// Runs the scenario of the command line to its end, or until `stop`, and prints its report; true if all checks passed.
///
/// # Errors
/// The scenario cannot be run.
pub async fn run(cli: Cli, stop: CancellationToken) -> Result<bool> {
    let command = cli
        .command
        .context("no scenario given; bench --help lists all scenarios")?;
    match &command {
        Command::Load(args) => {
            let load = async { Ok(load::run(&args.plan()?, &stop).await?.report()) };
            run_scenario("load", &args.report, load).await
        }
        Command::Lookup(args) => {
            run_scenario("lookup", &args.report, lookup::run(args, &stop)).await
        }
        Command::Subscribe(args) if args.fan_out.is_empty() => {
            let opened = || eprintln!("subscribed {} streams", args.streams);
            let read = async { Ok(subscribe::run(args, &stop, opened).await?.report()) };
            run_scenario("subscribe", &args.report, read).await
        }
        Command::Subscribe(args) => {
            run_scenario("fan-out", &args.report, subscribe::run_fan_out(args, &stop)).await
        }
        Command::E2e(args) => run_scenario("e2e", &args.report, e2e::run(args, &stop)).await,
    }
}
