//! The program `limiter`.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, Result, anyhow, ensure};
use limiter::{
    args::{Command, Program, ReplayArgs, Task},
    picture,
    replay::{Candidate, How, all_algorithms, replay},
    report, serve,
    trace::Trace,
};
use limits::rules::{ConfigErrors, Rules};
use limits_sharing::dsp_limits;

fn main() -> ExitCode {
    // Its settings come from flags, environment and a file, as those of the other servers.
    let mut arguments = std::env::args_os();
    let (program, first) = (arguments.next(), arguments.next());
    if first.as_ref().is_some_and(|task| task == "serve") {
        return serve::main(program.into_iter().chain(arguments));
    }
    // What the image asks of any of the programs for a health check.
    if first.is_some_and(|flag| flag == "--probe") {
        return serve::main(std::env::args_os());
    }
    let task = match Command::read(std::env::args_os()) {
        Ok(task) => task,
        Err(code) => return code,
    };
    match run(task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("limiter: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let text = match task {
        Task::Check { file, program } => match program {
            Program::Limiter => read(&file)?.to_string(),
            Program::Producer => format!("{:#}", read_for(&file, dsp_limits::check)?),
        },
        Task::Serve => unreachable!("it was looked for first"),
        Task::Replay(args) => replayed(&args)?,
    };
    print(text.trim_end())
}

/// Who reads may have gone, as `head` does.
fn print(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write as _};
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn read(file: &Path) -> Result<Rules> {
    read_for(file, serve::engine::unfit)
}

/// Reads a file for a program that cannot go by what `unfit` says.
fn read_for(file: &Path, unfit: fn(&Rules) -> Vec<String>) -> Result<Rules> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let rules = Rules::parse(&text).and_then(|rules| {
        let unfit = unfit(&rules);
        if unfit.is_empty() {
            Ok(rules)
        } else {
            Err(ConfigErrors(unfit))
        }
    });
    rules.map_err(|errors| anyhow!("{} is invalid:\n{errors}", file.display()))
}

fn replayed(args: &ReplayArgs) -> Result<String> {
    let candidates = candidates(args)?;
    let trace = Trace::read(&args.trace)?;
    if trace.late > 0 {
        eprintln!(
            "limiter: {} calls are earlier than one before them, and taken as made with it",
            trace.late
        );
    }
    let how = How {
        max_wait: args.max_wait,
        window: args.window.into(),
    };
    let outcomes: Vec<_> = candidates
        .iter()
        .map(|it| replay(&trace, it, how))
        .collect();
    if let Some(file) = &args.svg {
        let picture = picture::svg(&outcomes[0])?;
        fs::write(file, picture).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(report::table(&outcomes))
}

fn candidates(args: &ReplayArgs) -> Result<Vec<Candidate>> {
    if let Some(file) = &args.rules {
        return Ok(vec![Candidate {
            name: file.display().to_string(),
            rules: read(file)?,
        }]);
    }
    let rate = args.rate.context("no rate is given")?;
    let burst = args.burst.map(|it| it.0);
    let burst = burst.unwrap_or_else(|| rate.requests_in(1_000_000_000).max(1));
    let part = args.algorithm.as_deref().unwrap_or_default();
    let mut candidates = Vec::new();
    for (name, rule) in all_algorithms(rate, burst) {
        if name.contains(&part.replace([' ', '-'], "_")) {
            match Candidate::each(name, &rule) {
                Ok(candidate) => candidates.push(candidate),
                Err(error) => eprintln!("limiter: without {name}: {error}"),
            }
        }
    }
    ensure!(
        !candidates.is_empty(),
        "no algorithm with `{part}` in its name can have this rate: {}",
        limits::ALGORITHMS.join(", ")
    );
    Ok(candidates)
}
