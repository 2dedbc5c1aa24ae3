//! The program `limiter`: checks, serves and replays rate limits.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, Result, anyhow};
use limiter::{
    args::{Cli, Command, ReplayArgs},
    replay::{all_algorithms, replay, table},
    serve::{self, engine},
    trace::Trace,
};
use limits::rules::Rules;
use runtime::settings::info_commands;

fn main() -> ExitCode {
    // `serve` reads its own settings: flags, environment and a file, like the other servers.
    let mut arguments = std::env::args_os();
    let (program, first) = (arguments.next(), arguments.next());
    if first.as_ref().is_some_and(|command| command == "serve") {
        return serve::main(program.into_iter().chain(arguments));
    }
    // The container image runs the same health check, without a command, for every program.
    if first.is_some_and(|flag| flag == "--probe") {
        return serve::main(std::env::args_os());
    }
    let command = match Cli::read(std::env::args_os()) {
        Ok(command) => command,
        Err(code) => return code,
    };
    match run(command) {
        Ok(text) => info_commands::print(Ok(format!("{}\n", text.trim_end()).into_bytes())),
        Err(error) => {
            eprintln!("limiter: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<String> {
    Ok(match command {
        Command::Check { file } => read(&file)?.to_string(),
        Command::Serve => unreachable!("main handles it"),
        Command::Replay(args) => run_replay(&args)?,
    })
}

/// Reads and validates a limits file.
fn read(file: &Path) -> Result<Rules> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let rules = Rules::parse(&text).and_then(engine::checked);
    rules.map_err(|errors| anyhow!("{} is invalid:\n{errors}", file.display()))
}

fn run_replay(args: &ReplayArgs) -> Result<String> {
    let limits = limits_of(args)?;
    let trace = Trace::read(&args.trace)?;
    if trace.late > 0 {
        eprintln!(
            "limiter: calls that are out of order: {}; each is replayed at the time of the previous call",
            trace.late
        );
    }
    let replayed = limits.into_iter().map(|(name, rules)| {
        let outcome = replay(&trace, &rules, args.max_wait, args.window);
        (name, outcome)
    });
    Ok(table(&replayed.collect::<Vec<_>>()))
}

/// The limits to replay the calls through, each with its name in the table.
fn limits_of(args: &ReplayArgs) -> Result<Vec<(String, Rules)>> {
    if let Some(file) = &args.rules {
        return Ok(vec![(file.display().to_string(), read(file)?)]);
    }
    let mut limits = Vec::new();
    for (name, rules) in all_algorithms(args.rate.context("missing --rate")?) {
        match rules {
            Ok(rules) => limits.push((name.to_owned(), rules)),
            Err(error) => eprintln!("limiter: skipping {name}: {error}"),
        }
    }
    Ok(limits)
}
