//! What a program does when it is asked for something about itself instead of running: its settings, whether they are
//! good, whether the process that has them is ready, completions for a shell, its manual page.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Command;
use clap_complete::Shell;

use super::{Loaded, Settings, Written, command, probe};

/// The flags that ask, as clap knows them; none is a setting.
pub(super) const FLAGS: &[&str] = &[PRINT_CONFIG, CHECK_CONFIG, PROBE, COMPLETIONS, MAN];

const PRINT_CONFIG: &str = "print_config";
const CHECK_CONFIG: &str = "check_config";
const PROBE: &str = "probe";
const COMPLETIONS: &str = "completions";
const MAN: &str = "man";

/// What every program that has settings can be asked for.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Commands")]
pub struct InfoArgs {
    /// Print the settings as a file for --config, with where each is from
    #[arg(long)]
    print_config: bool,

    /// Check all settings, with the certificates, keys and tokens in the files they name, and say what is wrong
    ///
    /// Whether directories can be written, addresses are free and others can be reached shows only when it runs.
    #[arg(long)]
    check_config: bool,

    /// Ask the process that has these settings whether it is ready: for health checks of containers
    ///
    /// Asks /readyz at the address of --admin, for three seconds at most. The exit code is 0 when it is ready, otherwise
    /// 1, and the reason is printed; 2 when the command line cannot be read.
    #[arg(long)]
    probe: bool,

    #[command(flatten)]
    about: AboutArgs,
}

/// What every program can be asked for.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Commands")]
pub struct AboutArgs {
    /// Print completions for a shell: bash, elvish, fish, powershell or zsh
    #[arg(long, value_name = "SHELL")]
    completions: Option<String>,

    /// Print the manual page, for man
    #[arg(long)]
    man: bool,
}

/// The settings of a process that is to run.
///
/// # Errors
/// With the code to exit with, after everything was printed, when it is not to run: because its settings are wrong, or it
/// was asked for something else.
pub fn load_or_exit<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Loaded<A>, ExitCode> {
    let command = command::<A>();
    let written = Written::read(&command, arguments).map_err(|error| said(&error))?;
    let asks = |flag: &str| written.matches.get_flag(flag);
    if let Some(answer) = documentation(&command, &written.matches) {
        return Err(print(answer));
    }
    if asks(PROBE) {
        // Of errors only the one in --admin matters, unless nobody answers: then they may be why.
        let asked = probe::run(&written.effective.value(probe::ADDRESS));
        let errors = &written.errors;
        return Err(answered(asked.map_err(|why| {
            if errors.is_empty() {
                why
            } else {
                format!("{why}\nalso wrong:\n{errors}")
            }
        })));
    }
    let (prints, checks) = (asks(PRINT_CONFIG), asks(CHECK_CONFIG));
    let loaded = written.check::<A>().map_err(|error| said(&error))?;
    if prints {
        return Err(print(Ok(loaded.effective.to_string().into_bytes())));
    }
    if checks {
        return Err(print(Ok(b"the settings are good\n".to_vec())));
    }
    Ok(loaded)
}

/// What was asked about a program that [`AboutArgs`] are part of; `None` when nothing was. An error is in words.
#[must_use]
pub fn documentation(
    command: &Command,
    matches: &clap::ArgMatches,
) -> Option<Result<Vec<u8>, String>> {
    if let Some(shell) = matches.get_one::<String>(COMPLETIONS) {
        return Some(completions(command, shell));
    }
    matches.get_flag(MAN).then(|| manual(command))
}

/// Prints an answer, or what is wrong.
#[must_use]
pub fn print(answer: Result<Vec<u8>, String>) -> ExitCode {
    match answer {
        // Anyone who reads only the first lines of it closes the pipe.
        Ok(bytes) => match io::stdout().write_all(&bytes) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(wrong) => {
            eprintln!("error: {wrong}");
            ExitCode::from(2)
        }
    }
}

fn completions(command: &Command, shell: &str) -> Result<Vec<u8>, String> {
    let shell: Shell = shell.parse().map_err(|_| {
        format!(
            "--completions: {shell:?} is not a shell known here: bash, elvish, fish, powershell, zsh"
        )
    })?;
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command.clone(), name, &mut script);
    Ok(script)
}

/// The page of the program, and after it those of its subcommands.
fn manual(command: &Command) -> Result<Vec<u8>, String> {
    let mut command = command.clone();
    command.build();
    let mut page = Vec::new();
    let subcommands = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    for command in std::iter::once(&command).chain(subcommands) {
        let name = command
            .get_display_name()
            .unwrap_or(command.get_name())
            .to_owned();
        let rendered = clap_mangen::Man::new(command.clone().name(name)).render(&mut page);
        rendered.map_err(|error| error.to_string())?;
    }
    Ok(page)
}

fn answered(answer: Result<String, String>) -> ExitCode {
    match answer {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn said(error: &clap::Error) -> ExitCode {
    // Where nobody reads it, the code still says it.
    drop(error.print());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
