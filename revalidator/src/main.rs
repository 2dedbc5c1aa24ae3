//! The program `revalidator`.

use std::process::ExitCode;

use revalidator::{cli, serve};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let (program, first) = (arguments.next(), arguments.next());
    match first.as_ref().and_then(|it| it.to_str()) {
        Some("serve") => serve(program.into_iter().chain(arguments)),
        Some("jobs") => cli::main(program.into_iter().chain(arguments)),
        // The health check of the container image, which is the same for all programs.
        Some("--probe" | "--version") => serve(std::env::args_os()),
        _ => {
            eprintln!(
                "usage: revalidator serve|jobs; see `revalidator serve --help` and `revalidator jobs --help`"
            );
            ExitCode::from(2)
        }
    }
}
