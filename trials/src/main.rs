//! The `trials` program.

use std::process::ExitCode;

use bench::program;
use clap::Parser as _;
use trials::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    program::run(|stop| trials::run(cli, stop))
}
