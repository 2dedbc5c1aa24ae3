//! The `trials` program.

use std::process::ExitCode;

use clap::Parser as _;
use testkit::program;
use trials::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    program::run(|stop| trials::run(cli, stop))
}
