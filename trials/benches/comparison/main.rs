//! Runs of earlier systems, repeated with this one at their size and on a real clock, for docs/comparison.md.
//!
//! `COOKIESYNC_BIN_DIR=$PWD/target/dist cargo bench --profile dev -p trials --bench comparison -- SCENARIO` runs the programs of
//! `.ci/dist`, and writes a report with plots to `trials/bench-reports/`.

mod regulation;
mod revalidation;

use std::process::ExitCode;

use bench::program::run_scenario;
use clap::{Parser, Subcommand};
use testkit::program;

/// Repeat runs of earlier systems.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Passed by cargo.
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Regulation(regulation::RegulationArgs),
    Staircase(revalidation::StaircaseArgs),
    Assets(revalidation::AssetsArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    program::run(|stop| async move {
        match cli.command {
            Command::Regulation(args) => {
                let run = regulation::run(&args, &stop);
                run_scenario("regulation", &args.report, run).await
            }
            Command::Staircase(args) => {
                let run = revalidation::staircase();
                run_scenario("staircase", &args.report, run).await
            }
            Command::Assets(args) => {
                let run = revalidation::assets(args.assets);
                run_scenario("assets", &args.report, run).await
            }
        }
    })
}
