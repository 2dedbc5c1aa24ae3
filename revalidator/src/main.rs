//! The program `revalidator`.

use std::process::ExitCode;

fn main() -> ExitCode {
    revalidator::serve(std::env::args_os())
}
