//! Command-line arguments.

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, error::ErrorKind};
use limits::Rate;
use runtime::settings::{
    self, TIME_MAX,
    info_commands::{self, AboutArgs},
    time,
};

use crate::serve;

const REPLAY_EXAMPLE: &str = "\
Example:
  Replay three calls of one key at 1 request per second, with waits of up to 5 s:
    printf '0,dsp-17\\n0.1,dsp-17\\n0.2,dsp-17\\n' > calls.csv
    limiter replay calls.csv --rate 1/s --max-wait 5s";

/// Check, serve and replay rate limits
#[derive(Debug, Parser)]
#[command(name = "limiter", version = runtime::VERSION, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    about: AboutArgs,
}

impl Cli {
    /// Parses a command line, including the program name. The flags of `serve` are only described; `serve` parses them.
    ///
    /// # Errors
    /// The exit code, if there is no command to run; all output is already printed.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, ExitCode> {
        let serve = settings::command::<serve::config::Args>().name("serve");
        let mut cli = Self::command()
            .mut_args(|flag| flag.help_heading(None))
            .mut_subcommand("serve", |_| serve.display_order(1));
        let matches = cli.clone().get_matches_from(arguments);
        if let Some(output) = info_commands::documentation(&cli, &matches) {
            return Err(info_commands::print(output));
        }
        let read = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let missing = "missing command: see limiter --help";
        let fail = || cli.error(ErrorKind::MissingSubcommand, missing).exit();
        Ok(read.command.unwrap_or_else(fail))
    }
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Validate a limits file and describe its limits
    Check {
        /// Limits file (TOML)
        file: PathBuf,
    },
    /// Serve rate limits to other processes over HTTP
    Serve,
    /// Replay recorded calls through all algorithms or through a limits file, and print statistics
    ///
    /// Prints one row per algorithm, or one for the limits file. `worst window` is the maximum number of requests of one key in any period of --window; `delay` is the delay of released calls.
    #[command(after_long_help = REPLAY_EXAMPLE)]
    Replay(ReplayArgs),
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// CSV file with one call per line: time,key or time,key,requests
    ///
    /// A time is a number of seconds from any start, or a date and time with an offset, such as 2026-11-22T10:00:00Z. A header line, empty lines and lines starting with # are skipped.
    pub trace: PathBuf,
    /// Limits file to replay the calls through
    #[arg(long, value_name = "FILE", conflicts_with = "rate")]
    pub rules: Option<PathBuf>,
    /// Rate limit per key, such as 300/s, replayed with every algorithm. Bursts are the requests of one second
    #[arg(long, value_name = "RATE", required_unless_present = "rules")]
    pub rate: Option<Rate>,
    /// Maximum wait of a call; with 0s, calls that would wait are refused
    #[arg(long, value_name = "TIME", value_parser = time(Duration::ZERO..=TIME_MAX), default_value = "0s")]
    pub max_wait: Duration,
    /// Window length for the `worst window` column
    #[arg(long, value_name = "TIME", value_parser = time(Duration::from_nanos(1)..=TIME_MAX), default_value = "1s")]
    pub window: Duration,
}
