//! Flags that print something and exit: the settings, their validation, a readiness probe, shell completions, a manual page.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Command;
use clap_complete::Shell;

use super::{Loaded, RawSettings, Settings, command, probe};

/// The ids of these flags, which are not settings.
pub(super) const FLAGS: &[&str] = &[PRINT_CONFIG, CHECK_CONFIG, PROBE, COMPLETIONS, MAN];

const PRINT_CONFIG: &str = "print_config";
const CHECK_CONFIG: &str = "check_config";
const PROBE: &str = "probe";
const COMPLETIONS: &str = "completions";
const MAN: &str = "man";

/// The info commands of a program with settings.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Commands")]
pub struct InfoArgs {
    /// Print the settings and their sources, as a file for --config
    #[arg(long)]
    print_config: bool,

    /// Validate all settings, and the certificate, key, token and limits files that they name, and print all errors
    ///
    /// Does not check whether directories are writable, ports are free or servers can be reached.
    #[arg(long)]
    check_config: bool,

    /// Query whether the running process with these settings is ready, for container health checks
    ///
    /// Requests /readyz at the address of --admin, with a timeout of three seconds. The exit code is 0 if the process is ready,
    /// 1 if it is not (the reason is printed), and 2 if the command line is invalid.
    #[arg(long)]
    probe: bool,

    #[command(flatten)]
    about: AboutArgs,
}

/// The info commands of every program.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Commands")]
pub struct AboutArgs {
    /// Print completions for a shell: bash, elvish, fish, powershell or zsh
    #[arg(long, value_name = "SHELL")]
    completions: Option<String>,

    /// Print the manual page, in the format of man
    #[arg(long)]
    man: bool,
}

/// Loads the settings, or runs an info command.
///
/// # Errors
/// The exit code, if the settings are invalid or an info command has run. All output is printed.
pub fn load_or_exit<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Loaded<A>, ExitCode> {
    let command = command::<A>();
    let raw = RawSettings::read(&command, arguments).map_err(|error| print_clap(&error))?;
    let is_set = |flag: &str| raw.matches.get_flag(flag);
    if let Some(output) = documentation(&command, &raw.matches) {
        return Err(print(output));
    }
    if is_set(PROBE) {
        // If the probe succeeds, errors of other settings do not matter. If it fails, they may be the cause.
        let probed = probe::run(&raw.effective.value(probe::ADDRESS));
        let errors = &raw.errors;
        return Err(print_probe(probed.map_err(|reason| {
            if errors.is_empty() {
                reason
            } else {
                format!("{reason}\nfurther errors:\n{errors}")
            }
        })));
    }
    let (prints, checks) = (is_set(PRINT_CONFIG), is_set(CHECK_CONFIG));
    let loaded = raw.check::<A>().map_err(|error| print_clap(&error))?;
    if prints {
        return Err(print(Ok(loaded.effective.to_string().into_bytes())));
    }
    if checks {
        return Err(print(Ok(b"configuration is valid\n".to_vec())));
    }
    Ok(loaded)
}

/// The output of `--completions` or `--man`, or an error message; `None` if neither flag of [`AboutArgs`] is set.
pub fn documentation(
    command: &Command,
    matches: &clap::ArgMatches,
) -> Option<Result<Vec<u8>, String>> {
    if let Some(shell) = matches.get_one::<String>(COMPLETIONS) {
        return Some(completions(command, shell));
    }
    matches.get_flag(MAN).then(|| manual(command))
}

/// Prints the output or the error of a command; returns its exit code.
pub fn print(output: Result<Vec<u8>, String>) -> ExitCode {
    match output {
        // A reader such as `head` may close the pipe early.
        Ok(bytes) => match io::stdout().write_all(&bytes) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn completions(command: &Command, shell: &str) -> Result<Vec<u8>, String> {
    let shell: Shell = shell.parse().map_err(|_| {
        format!("--completions: unknown shell {shell:?}; use bash, elvish, fish, powershell or zsh")
    })?;
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command.clone(), name, &mut script);
    Ok(script)
}

/// The manual page of the program, followed by those of its subcommands.
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

fn print_probe(probed: Result<String, String>) -> ExitCode {
    match probed {
        Ok(body) => {
            println!("{body}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn print_clap(error: &clap::Error) -> ExitCode {
    // If printing fails, the exit code still reports the error.
    drop(error.print());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
