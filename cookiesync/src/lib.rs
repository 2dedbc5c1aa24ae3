//! A command-line tool for a cluster: asks all producers and nodes at the same time, and prints a table or JSON.
//!
//! It has no state, and reads only what the admin ports and the producers' APIs serve. All requests of a command have one deadline, so
//! that processes that do not respond are named, and do not delay the others. Responses are untrusted: their size is limited, and
//! control characters are not printed. Tokens are sent only to the API, and never printed.
//!
//! The exit code is 0, 1 if there is a problem, and 2 if nothing could be asked.

mod args;
mod check;
mod cluster;
mod nodes;
mod partners;
mod report;
mod status;
mod users;

use std::{ffi::OsString, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::FromArgMatches as _;
use runtime::settings::info_commands;
use tokio::runtime::Builder;

pub use self::args::Cli;
use self::{args::Command, cluster::Cluster, report::Report};

/// Exit code of a command that could not ask anything.
const NOT_ASKED: u8 = 2;

impl Cli {
    /// Parses a command line, which starts with the program name.
    ///
    /// # Errors
    /// The exit code, if no command is to be run. Help, version or errors have been printed.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, ExitCode> {
        let command = Self::definition();
        let matches = command.clone().get_matches_from(arguments);
        if let Some(output) = info_commands::documentation(&command, &matches) {
            return Err(info_commands::print(output));
        }
        Ok(Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
    }
}

/// Runs a command, prints its report, and returns the exit code.
pub fn run(cli: Cli) -> ExitCode {
    let is_json = cli.cluster.json;
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(anyhow::Error::from);
    match runtime.and_then(|runtime| runtime.block_on(report(cli))) {
        Ok(report) => {
            // A reader such as `head` may close the pipe early.
            info_commands::print(Ok(report.print(is_json).into_bytes()));
            report.exit_code()
        }
        Err(error) => {
            eprintln!("error: {}", report::printable(&format!("{error:#}")));
            ExitCode::from(NOT_ASKED)
        }
    }
}

async fn report(cli: Cli) -> Result<Report> {
    let command = cli.command.context("no command; see cookiesync --help")?;
    let mut cluster = Cluster::open(cli.cluster).await?;
    cluster.timeout += command.more_time();
    match command {
        Command::Status => Ok(status::report(&cluster).await),
        Command::Nodes => Ok(nodes::report(&cluster).await),
        Command::Forget { name } => nodes::forget(&cluster, &name).await,
        Command::Receipt { receipt } => users::receipt(&cluster, &receipt).await,
        Command::Delete { user, dsp } => users::delete(&cluster, &user, dsp).await,
        Command::Lookup { user } => Ok(users::lookup(&cluster, &user).await),
        Command::Why { user, dsp } => Ok(users::why(&cluster, &user, dsp).await),
        Command::Partners => Ok(partners::report(&cluster).await),
        Command::LogFilter(args) => status::set_log_filter(&cluster, &args).await,
        Command::Check { survive } => Ok(check::report(&cluster, survive).await),
    }
}
