//! The `cookiesync` program.

use std::process::ExitCode;

use cookiesync::Cli;

fn main() -> ExitCode {
    match Cli::read(std::env::args_os()) {
        Ok(cli) => cookiesync::run(cli),
        Err(code) => code,
    }
}
