//! The command line.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, error::ErrorKind};
use limits::{
    Rate,
    rate::{Count, Time},
};
use runtime::settings::{
    self,
    info_commands::{self, AboutArgs},
};

use crate::serve;

/// Checks rate limits, serves them to other processes, and replays recorded traffic through them.
#[derive(Debug, Parser)]
#[command(name = "limiter", version = runtime::VERSION, arg_required_else_help = true)]
pub struct Command {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    about: AboutArgs,
}

impl Command {
    /// Reads a command line, the program's name first. The settings of `serve` are only described here: it reads them itself.
    ///
    /// # Errors
    /// With the code to exit with, after everything was printed, when there is nothing to do.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Task, ExitCode> {
        let serve = |_| settings::command::<serve::config::Args>().name("serve");
        let mut command = Self::command().mut_subcommand("serve", serve);
        let matches = command.clone().get_matches_from(arguments);
        if let Some(output) = info_commands::documentation(&command, &matches) {
            return Err(info_commands::print(output));
        }
        let read = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let missing = "name what to do: limiter --help lists it";
        let task = read.task;
        task.map_or_else(
            || command.error(ErrorKind::MissingSubcommand, missing).exit(),
            Ok,
        )
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Report the errors of every table in a file of limits, or print the effective plan in words.
    Check {
        /// The file, in TOML.
        file: PathBuf,
        /// The program that is to go by it: each has rules of its own beside those of the file.
        #[arg(
            long = "for",
            value_name = "PROGRAM",
            value_enum,
            default_value = "limiter"
        )]
        program: Program,
    },
    /// Serve: tell other processes when their next call may go.
    Serve,
    /// Replay recorded calls through all algorithms, or through a file of limits, and show what would have become of them.
    Replay(ReplayArgs),
}

/// A program that goes by a file of limits.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Program {
    /// `limiter serve`: keys are counters, each that no limit names for itself.
    Limiter,
    /// `producer --limits`: keys are DSPs, and all that no limit names share one bucket and one queue.
    Producer,
}

/// How to replay.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The calls: CSV of time, key and number of requests.
    pub trace: PathBuf,
    /// Replay through the limits in this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "burst", "algorithm"])]
    pub rules: Option<PathBuf>,
    /// Replay each key through a limit of this rate, by all algorithms.
    #[arg(long, value_name = "RATE", required_unless_present = "rules")]
    pub rate: Option<Rate>,
    /// How many may go at once after a pause, in the algorithms that allow it [default: the requests of a second].
    #[arg(long, value_name = "N")]
    pub burst: Option<Count>,
    /// Only algorithms of whose names this is a part, as in "sliding".
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<String>,
    /// The longest that a call may wait; with 0s, what would have to wait is refused.
    #[arg(long, value_name = "TIME", value_parser = max_wait, default_value = "0s")]
    pub max_wait: Duration,
    /// Look for the fullest window of this length.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub window: Time,
    /// Write a picture of what came and went into this file; of several outcomes, of the first.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

fn max_wait(text: &str) -> Result<Duration, limits::RateError> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        time => Ok(time.parse::<Time>()?.into()),
    }
}
