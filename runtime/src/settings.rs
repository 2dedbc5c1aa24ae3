//! Where a process's settings come from: flags, then environment, then a TOML file, then defaults.
//!
//! The command line is described once, by a clap parser; the file's values become the defaults of its flags.
//! A key of the file is the flag's name with underscores, an environment variable the same in capitals after the
//! program's name. So every setting has all three forms, and none can be known to one and unknown to another.
//!
//! Every flag's type is `String` (a list's `Vec<String>`), so that clap accepts whatever is written and a check
//! can name all mistakes at once, those of the file among them.
//!
//! What every process can do with its settings instead of running is in [`instead`]; [`Change`] says which of them may
//! change while it runs, and [`renewal`] changes them; [`mod@reference`] writes the documentation.

mod common;
mod effective;
mod file;
pub mod instead;
mod mistakes;
pub mod probe;
pub mod reference;
pub mod renewal;
mod values;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{
    Arg, ArgAction, ArgMatches, Command, Parser, ValueHint, builder::Resettable, error::ErrorKind,
};

pub use self::{
    common::{Common, CommonArgs},
    effective::{Effective, Setting, Source, lacks_secret, without_secret},
    mistakes::Mistakes,
    values::{
        TIME_MAX, address, boolean, bytes, number, optional_number, size, time, time_within, within,
    },
};

/// The flag that names the file; it is the one setting the file cannot hold.
const FILE: &str = "config";

/// The settings of one process, as they are written.
pub trait Settings: Parser + 'static {
    /// The same, checked.
    type Config: Send + 'static;

    /// What becomes of a change of each setting while the process runs. Each setting is named once, as in the file;
    /// [`unclassified`] finds what is missing. Those of [`Common`] are not named here.
    const CHANGES: &'static [(&'static str, Change)];

    /// Checks all settings; notes all mistakes.
    fn check(&self, mistakes: &mut Mistakes) -> Self::Config;

    /// The settings that every process has.
    fn common(config: &Self::Config) -> &Common;
}

/// What becomes of a change of a setting while the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is in use at once.
    Reloaded,
    /// The setting names a file, which is looked at again and again; the name of another needs a restart.
    Contents,
    /// It needs a restart.
    Restart,
}

impl Change {
    /// That of the setting `id` of `A`; `None` when nobody said.
    #[must_use]
    pub fn of<A: Settings>(id: &str) -> Option<Self> {
        let all = common::CHANGES.iter().chain(A::CHANGES);
        all.into_iter()
            .find(|(name, _)| *name == id)
            .map(|&(_, change)| change)
    }
}

/// What is wrong with [`Settings::CHANGES`]: settings without a row, rows without a setting or with two. Meant for a test
/// of each process.
#[must_use]
pub fn unclassified<A: Settings>() -> Vec<String> {
    let command = command::<A>();
    let settings: Vec<_> = command
        .get_arguments()
        .filter(|argument| is_setting(argument))
        .map(|argument| argument.get_id().as_str())
        .collect();
    let rows: Vec<_> = common::CHANGES.iter().chain(A::CHANGES).collect();
    let count = |id: &str| rows.iter().filter(|(name, _)| *name == id).count();
    let mut wrong: Vec<_> = settings
        .iter()
        .filter(|id| count(id) != 1)
        .map(|id| format!("{id} has {} rows", count(id)))
        .collect();
    wrong.extend(
        rows.iter()
            .filter(|(name, _)| !settings.contains(name))
            .map(|(name, _)| format!("{name} is no setting")),
    );
    wrong
}

/// The settings of a process, read.
#[derive(Debug)]
pub struct Loaded<A: Settings> {
    /// The checked settings.
    pub config: A::Config,
    /// What they are, and where each is from.
    pub effective: Effective,
    arguments: Vec<OsString>,
    file: Option<PathBuf>,
}

/// Parses `arguments` (program name first) and checks the settings. An empty environment variable counts as not set:
/// that is how deployment tools say so.
///
/// # Errors
/// clap's, ready to be printed: also for `--help`, and with all mistakes of flags, file and check together.
pub fn load<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Loaded<A>, clap::Error> {
    Written::read(&command::<A>(), arguments)?.check()
}

/// The command line of `A`, whose settings all have an environment variable.
#[must_use]
pub fn command<A: Settings>() -> Command {
    let command = A::command();
    let program = command.get_name().to_uppercase();
    command.mut_args(|argument| {
        let argument = match argument.get_value_names() {
            Some([name]) if name == "FILE" => argument.value_hint(ValueHint::FilePath),
            Some([name]) if name == "DIR" => argument.value_hint(ValueHint::DirPath),
            _ => argument,
        };
        let has_variable = is_setting(&argument) || argument.get_id() == FILE;
        if !has_variable || argument.get_env().is_some() {
            return argument;
        }
        let variable = format!("{program}_{}", argument.get_id().as_str().to_uppercase());
        argument.env(variable)
    })
}

/// Whether this is a setting: something that flag, environment and file can say.
fn is_setting(argument: &Arg) -> bool {
    let id = argument.get_id().as_str();
    id != FILE && !instead::FLAGS.contains(&id) && argument.get_action().takes_values()
}

fn is_list(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

/// The settings as they were written, with what is wrong with the file, and not checked yet.
struct Written {
    arguments: Vec<OsString>,
    matches: ArgMatches,
    effective: Effective,
    file: Option<PathBuf>,
    mistakes: Mistakes,
}

impl Written {
    fn read(
        command: &Command,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        let mut command = command.clone().mut_args(without_empty_environment);
        let mut mistakes = Mistakes::default();
        let mut in_file = Default::default();
        let file = file_of(&command, &arguments);
        if let Some(path) = &file {
            (command, in_file) = file::with_file(command, path, &mut mistakes);
        }
        let matches = command
            .try_get_matches_from_mut(&arguments)
            .map_err(|error| with_mistakes(error, &mistakes))?;
        let effective = Effective::of(&command, &matches, &in_file, file.as_deref());
        Ok(Self {
            arguments,
            matches,
            effective,
            file,
            mistakes,
        })
    }

    fn check<A: Settings>(mut self) -> Result<Loaded<A>, clap::Error> {
        let config = A::from_arg_matches(&self.matches)?.check(&mut self.mistakes);
        if !self.mistakes.is_empty() {
            let message = format!("wrong settings:\n{}\n", self.mistakes);
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message));
        }
        Ok(Loaded {
            config,
            effective: self.effective,
            arguments: self.arguments,
            file: self.file,
        })
    }
}

impl<A: Settings> Loaded<A> {
    /// The file that settings came from.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

fn without_empty_environment(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    if value.is_some_and(|value| value.is_empty()) {
        argument.env(Resettable::Reset)
    } else {
        argument
    }
}

/// The file named by flag or environment; none for `--help`, which shows the defaults and no secret of a file.
fn file_of(command: &Command, arguments: &[OsString]) -> Option<PathBuf> {
    let lenient = command.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    matches.get_one::<PathBuf>(FILE).cloned()
}

/// What clap found, and what is wrong with the file.
fn with_mistakes(error: clap::Error, mistakes: &Mistakes) -> clap::Error {
    if mistakes.is_empty() || !error.use_stderr() {
        return error;
    }
    let message = format!("{error}\nalso wrong:\n{mistakes}\n");
    // clap puts its own "error: " before.
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    clap::Error::raw(error.kind(), message)
}

#[cfg(test)]
mod tests;
