//! Load, readers and the measuring between them: what shows that the system keeps its word.
//!
//! One file is one scenario; each is a function that takes its arguments and a token that ends it early, and
//! returns an outcome that can be printed or compared:
//!
//! - [`load`] sends sync requests, checks every answer, and measures from the intended time when it has a rate;
//! - [`subscribe`] opens many streams and checks that every sequence arrives or is declared missing, and says what each further one
//!   costs;
//! - [`e2e`] drives everything together through a ladder of rates and verifies every store;
//! - [`compare`] puts two reports side by side and says what changed beyond noise.
//!
//! The rest is what they, and what only developers run (`trials`), need: the cookies of a load made again from its seed
//! ([`traffic`]), the real processes together ([`cluster`]; each by itself and its admin port: [`launcher`]) and what they use
//! and say meanwhile ([`observe`]), what a store must hold ([`verify`]),
//! what is left behind ([`report`]), and how a program that runs scenarios begins and ends ([`program`]).

pub mod cluster;
pub mod compare;
pub mod cpu;
pub mod e2e;
pub mod load;
pub mod memory;
pub mod observe;
pub mod program;
pub mod report;
pub mod subscribe;
pub mod traffic;
pub mod values;
pub mod verify;

pub use launcher::{
    admin, http, ledger, limiter, mongod, producer, programs, redis, scrape, tools,
};

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use runtime::settings::info_commands::{self, AboutArgs};
use tokio_util::sync::CancellationToken;

use crate::{
    program::{print, warn_of_profile},
    report::{Report, ReportDir, write_report},
};

/// Measures cookiesync.
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
  What this machine takes, step by step, into a mongod of its own, with every store read in the end:
    bench e2e

  20,000 requests a second for a minute, whether or not answers come:
    bench load --url http://127.0.0.1:8080/ -l 20000 --duration 1m

  Each scenario explains its own flags:
    bench load --help";

impl Cli {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    /// With the code to exit with, after everything was printed, when no scenario is to run.
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
    Subscribe(Box<subscribe::SubscribeArgs>),
    E2e(Box<e2e::E2eArgs>),
    Compare(compare::CompareArgs),
}

/// Prints a report and leaves it in its directory. True when nothing was wrong.
fn finish(json: bool, report: &Report, dir: Option<ReportDir>) -> Result<bool> {
    print(json, report, Report::summary)?;
    write_report(dir, || report.clone())?;
    Ok(report.failures.is_empty())
}

/// Runs what the command line asks for, until it ends or `stop`, and prints its report.
///
/// True when nothing was wrong.
///
/// # Errors
/// When the scenario could not do its work.
pub async fn run(cli: Cli, stop: CancellationToken) -> Result<bool> {
    let command = cli
        .command
        .context("name a scenario: bench --help lists them")?;
    if !matches!(command, Command::Compare(_)) {
        warn_of_profile();
    }
    match command {
        Command::Load(args) => {
            let dir = args.report.prepare("load")?;
            let report = load::run(&args.plan()?, &stop).await?.report();
            finish(args.report.json, &report, dir)
        }
        Command::Subscribe(args) if !args.fan_out.fan_out.is_empty() => {
            let dir = args.report.prepare("fan-out")?;
            let report = subscribe::run_fan_out(&args, &stop).await?;
            finish(args.report.json, &report, dir)
        }
        Command::Subscribe(args) => {
            let dir = args.report.prepare("subscribe")?;
            let opened = || eprintln!("subscribed {} streams", args.streams);
            let report = subscribe::run(&args, &stop, opened).await?.report();
            finish(args.report.json, &report, dir)
        }
        Command::E2e(args) => {
            let outcome = e2e::run(&args, &stop).await?;
            print(args.report.json, &outcome, e2e::E2eOutcome::summary)?;
            Ok(outcome.failures.is_empty())
        }
        Command::Compare(args) => {
            let report = compare::run(&args)?;
            let dir = args.report.prepare("compare")?;
            finish(args.report.json, &report, dir)
        }
    }
}
