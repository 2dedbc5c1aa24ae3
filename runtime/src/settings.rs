//! Where a process's settings come from: flags, then environment, then a TOML file, then defaults.
//!
//! The command line is described once, by a clap parser. [`Effective`] has each setting's values and where they are from.
//! A key of the file is the flag's name with underscores, an environment variable the same in capitals after the
//! program's name. So every setting has all three forms, and none can be known to one and unknown to another.
//!
//! A flag is the one place where a setting is described: its field's type and `value_parser` say what it takes, its group
//! says what becomes of a change. clap would name the first error alone, so each value is tried by itself, and all
//! errors are named at once, those of the file among them.
//!
//! What every process can do with its settings instead of running is in [`instead`]; [`ReloadMode`] says which of them may
//! change while it runs, and [`live_config`] changes them.

mod common;
mod config_errors;
mod effective;
mod file;
pub mod info_commands;
pub mod live_config;
pub mod probe;
mod values;

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Command, Parser, ValueHint,
    builder::{Resettable, ValueParser},
    error::ErrorKind,
};

pub use self::{
    common::{Common, CommonArgs},
    config_errors::ConfigErrors,
    effective::{Effective, Setting, Source, is_redacted, redacted},
    values::{Refused, TIME_MAX, address, boolean, bytes, count, optional, size, time},
};
use crate::{VERSION, reload::NamedFile};

/// The flag that names the file; it is the one setting the file cannot hold.
const FILE: &str = "config";

/// The settings of one process, as they are written.
pub trait Settings: Parser + 'static {
    /// The same, checked.
    type Config: Send + 'static;

    /// From values that are each good to what they mean together; notes all errors.
    fn check(self, errors: &mut ConfigErrors) -> Self::Config;

    /// The settings that every process has.
    fn common(config: &Self::Config) -> &Common;
}

/// The group of the settings of which a change is [in use at once](Change::Reloaded).
pub const RELOADED: &str = "reloaded";

/// The group of the settings that name [files which are looked at again and again](Change::Contents).
pub const CONTENTS: &str = "contents";

/// What becomes of a change of a setting while the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadMode {
    /// It is in use at once. Such a flag is in the group [`RELOADED`].
    Live,
    /// The setting names a file, which is looked at again and again; the name of another needs a restart. Such a flag is in
    /// the group [`CONTENTS`].
    FileContents,
    /// It needs a restart. Such a flag is in neither group.
    Restart,
}

impl ReloadMode {
    /// That of one of the settings of a command that was built.
    fn of(command: &Command, setting: &Arg) -> Self {
        let is_in = |name| {
            let mut groups = command.get_groups().filter(|group| group.get_id() == name);
            groups.any(|group| group.get_args().any(|id| id == setting.get_id()))
        };
        if is_in(RELOADED) {
            Self::Live
        } else if is_in(CONTENTS) {
            Self::FileContents
        } else {
            Self::Restart
        }
    }
}

/// The names of the settings of `A` of whose change this becomes. Meant for tests.
#[must_use]
pub fn settings_with<A: Settings>(change: ReloadMode) -> Vec<String> {
    let mut command = command::<A>();
    command.build();
    let settings = command
        .get_arguments()
        .filter(|argument| is_setting(argument) && ReloadMode::of(&command, argument) == change);
    settings
        .map(|setting| setting.get_id().to_string())
        .collect()
}

/// The settings of a process, read.
#[derive(Debug)]
pub struct Loaded<A: Settings> {
    /// The checked settings.
    pub config: A::Config,
    /// What they are, and where each is from.
    pub effective: Effective,
    arguments: Vec<OsString>,
    file: Option<NamedFile>,
}

/// Parses `arguments` (program name first) and checks the settings. An empty environment variable counts as not set:
/// that is how deployment tools say so.
///
/// # Errors
/// clap's, ready to be printed: also for `--help`, and with all errors of flags, file and check together.
pub fn load<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Loaded<A>, clap::Error> {
    Written::read(&command::<A>(), arguments)?.check()
}

/// How the settings of a process are given.
const GIVEN: &str = "Each setting is a flag, an environment variable, and a key of the TOML file (the flag's name with underscores); \
                     the flag wins, then the environment, then the file.";

/// The command line of `A`, whose settings all have an environment variable.
#[must_use]
pub fn command<A: Settings>() -> Command {
    let command = A::command();
    let about = command.get_about().map(|about| format!("{about}.\n\n"));
    let command = command
        .version(VERSION)
        .long_about(about.unwrap_or_default() + GIVEN)
        .after_help("--help tells more of each, and shows all.");
    let command = [RELOADED, CONTENTS]
        .into_iter()
        .fold(command, |command, name| {
            command.group(ArgGroup::new(name).multiple(true))
        });
    let program = command.get_name().to_uppercase();
    command.mut_args(|argument| {
        let argument = match argument.get_value_names() {
            Some([name]) if name == "FILE" => argument.value_hint(ValueHint::FilePath),
            Some([name]) if name == "DIR" => argument.value_hint(ValueHint::DirPath),
            _ => argument,
        };
        let is_unset = argument.get_default_values() == [""];
        let argument = argument.hide_default_value(is_unset);
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
    id != FILE && !info_commands::FLAGS.contains(&id) && argument.get_action().takes_values()
}

fn is_list(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

/// The settings as they were written, with what is wrong with the file, and not checked yet.
struct Written {
    arguments: Vec<OsString>,
    matches: ArgMatches,
    effective: Effective,
    file: Option<NamedFile>,
    errors: ConfigErrors,
}

impl Written {
    fn read(
        command: &Command,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        let mut command = command
            .clone()
            .mut_args(from_environment)
            .mut_args(taking_anything);
        let mut errors = ConfigErrors::default();
        let file = file_of(&command, &arguments);
        let in_file = match &file {
            Some(file) => file::values(&command, file, &mut errors),
            None => Default::default(),
        };
        let matches = command
            .try_get_matches_from_mut(&arguments)
            .map_err(|error| with_errors(error, &errors))?;
        let effective = Effective::of(&command, &matches, in_file, file.as_ref());
        Ok(Self {
            arguments,
            matches,
            effective,
            file,
            errors,
        })
    }

    fn check<A: Settings>(mut self) -> Result<Loaded<A>, clap::Error> {
        let command = command::<A>().mut_args(|argument| argument.env(Resettable::Reset));
        let good = self.good_values(&command);
        let config = command
            .try_get_matches_from(good)
            .and_then(|matches| A::from_arg_matches(&matches))
            .map(|settings| settings.check(&mut self.errors));
        if !self.errors.is_empty() {
            let message = format!("wrong settings:\n{}\n", self.errors);
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message));
        }
        Ok(Loaded {
            config: config?,
            effective: self.effective,
            arguments: self.arguments,
            file: self.file,
        })
    }

    /// A command line that says each good value of each setting; notes what is wrong with the others, for which the defaults
    /// stand in, so that errors between settings are found too.
    fn good_values(&mut self, command: &Command) -> Vec<OsString> {
        let mut line = vec![command.get_name().into()];
        for setting in command
            .get_arguments()
            .filter(|argument| is_setting(argument))
        {
            let flag = setting.get_long().unwrap_or_default();
            for value in self.effective.values(setting.get_id().as_str()) {
                match values::refusal(setting, value) {
                    None => {
                        let mut good = OsString::from(format!("--{flag}="));
                        good.push(value);
                        line.push(good);
                    }
                    Some(refused) => self.errors.add(format!("--{flag}: {refused}")),
                }
            }
        }
        line
    }
}

/// Without its variable where that is empty.
fn from_environment(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    if value.is_some_and(|value| value.is_empty()) {
        argument.env(Resettable::Reset)
    } else {
        argument
    }
}

/// A setting before its check, which is to find all errors and not the first alone.
fn taking_anything(argument: Arg) -> Arg {
    if is_setting(&argument) {
        argument.value_parser(ValueParser::os_string())
    } else {
        argument
    }
}

/// The file named by flag or environment; none for `--help`, which shows the defaults and no secret of a file.
fn file_of(command: &Command, arguments: &[OsString]) -> Option<NamedFile> {
    let lenient = command.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    let path = matches.get_one::<PathBuf>(FILE).cloned();
    path.map(|path| NamedFile {
        flag: "--config",
        path,
    })
}

/// What clap found, and what is wrong with the file.
fn with_errors(error: clap::Error, errors: &ConfigErrors) -> clap::Error {
    if errors.is_empty() || !error.use_stderr() {
        return error;
    }
    let message = format!("{error}\nalso wrong:\n{errors}\n");
    // clap puts its own "error: " before.
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    clap::Error::raw(error.kind(), message)
}

#[cfg(test)]
mod tests;
