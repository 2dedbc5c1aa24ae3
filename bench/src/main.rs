//! The `bench` program.

use std::process::ExitCode;

use bench::Cli;
use testkit::program;

fn main() -> ExitCode {
    match Cli::read(std::env::args_os()) {
        Ok(cli) => program::run(|stop| bench::run(cli, stop)),
        Err(code) => code,
    }
}
