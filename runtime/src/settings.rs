//! Settings of a process: from flags, then environment, then a TOML file, then defaults.
//!
//! A clap parser declares each setting once, as a field. The field's type and `value_parser` validate the value, and its
//! group sets the [`ReloadMode`]. The file key is the flag with underscores, and the environment variable is the same in
//! capitals, prefixed with the program name. So every setting has all three forms.
//!
//! clap reports only the first error. So each value is validated separately, and all errors are reported together with those
//! of the file.
//!
//! [`info_commands`] contains the flags that print something and exit. [`live_config`] reloads settings at runtime.

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
    common::CommonArgs,
    config_errors::ConfigErrors,
    effective::{EffectiveSettings, Setting, Source, is_redacted, redacted},
    values::{
        InvalidValue, TIME_MAX, address, boolean, bytes, count, format_time, optional, size, time,
    },
};
use crate::{VERSION, reload::NamedFile};

/// The flag with the path of the file. It is the only setting that the file cannot contain.
const FILE: &str = "config";

/// The command line of a process.
pub trait Settings: Parser + 'static {
    /// The validated settings.
    type Config: Send + 'static;

    /// Converts settings with valid values, and checks constraints between them. Records all errors.
    fn check(self, errors: &mut ConfigErrors) -> Self::Config;

    /// The settings that every process shares.
    fn common(config: &Self::Config) -> &CommonArgs;
}

/// Group of settings that [change at runtime](ReloadMode::Live).
pub const RELOADED: &str = "reloaded";

/// Group of settings that name [reloaded files](ReloadMode::FileContents).
pub const CONTENTS: &str = "contents";

/// Value name of settings that are true or false, false by default; the flag without a value means true.
pub const BOOLEAN: &str = "true|false";

/// How a change of a setting takes effect while the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadMode {
    /// Immediately. The flag is in the group [`RELOADED`].
    Live,
    /// The setting names a file whose contents are reloaded; a new path needs a restart. The flag is in the group
    /// [`CONTENTS`].
    FileContents,
    /// After a restart. The flag is in neither group.
    Restart,
}

impl ReloadMode {
    /// The mode of a setting of a built command.
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

/// Names of the settings of `A` with this reload mode, for tests and generated documentation.
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

/// The settings of a process, loaded and validated.
#[derive(Debug)]
pub struct Loaded<A: Settings> {
    /// The validated settings.
    pub config: A::Config,
    /// Values and sources of all settings.
    pub effective: EffectiveSettings,
    arguments: Vec<OsString>,
    file: Option<NamedFile>,
}

/// Parses `arguments` (program name first) and validates the settings. An empty environment variable counts as unset, because
/// deployment tools pass unset variables that way.
///
/// # Errors
/// A printable clap error, including that of `--help`; contains all errors of flags, file and constraints.
pub fn load<A: Settings>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Loaded<A>, clap::Error> {
    RawSettings::read(&command::<A>(), arguments)?.check()
}

/// Explanation of the sources in the long help.
const SOURCES: &str = "Each setting is a flag, an environment variable, and a key of the TOML file (the flag's name with underscores); \
                     the flag has priority, then the environment, then the file.";

/// The command line of `A` with an environment variable for each setting.
pub fn command<A: Settings>() -> Command {
    let command = A::command();
    let about = command.get_about().map(|about| format!("{about}.\n\n"));
    let command = command
        .version(VERSION)
        .long_about(about.unwrap_or_default() + SOURCES)
        .after_help("--help shows all settings with details.");
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
            Some([name]) if name == BOOLEAN => argument
                .action(ArgAction::Set)
                .value_parser(boolean)
                .default_value("false")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
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

/// Whether the argument is a setting, which flag, environment and file can set.
fn is_setting(argument: &Arg) -> bool {
    let id = argument.get_id().as_str();
    id != FILE && !info_commands::FLAGS.contains(&id) && argument.get_action().takes_values()
}

fn is_list(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

/// Settings before validation, with the errors of the file.
struct RawSettings {
    arguments: Vec<OsString>,
    matches: ArgMatches,
    effective: EffectiveSettings,
    file: Option<NamedFile>,
    errors: ConfigErrors,
}

impl RawSettings {
    fn read(
        command: &Command,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        let mut command = command
            .clone()
            .mut_args(without_empty_variable)
            .mut_args(without_validation);
        let mut errors = ConfigErrors::default();
        let file = file_of(&command, &arguments);
        let in_file = match &file {
            Some(file) => file::values(&command, file, &mut errors),
            None => Default::default(),
        };
        let matches = command
            .try_get_matches_from_mut(&arguments)
            .map_err(|error| with_errors(error, &errors))?;
        let effective = EffectiveSettings::of(&command, &matches, in_file, file.as_ref());
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
        let valid = self.valid_values(&command);
        let config = command
            .try_get_matches_from(valid)
            .and_then(|matches| A::from_arg_matches(&matches))
            .map(|settings| settings.check(&mut self.errors));
        if !self.errors.is_empty() {
            let message = format!("invalid settings:\n{}\n", self.errors);
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message));
        }
        Ok(Loaded {
            config: config?,
            effective: self.effective,
            arguments: self.arguments,
            file: self.file,
        })
    }

    /// A command line with all valid values. Records the errors of invalid values, and replaces them with their
    /// defaults so that constraints between settings are still checked.
    fn valid_values(&mut self, command: &Command) -> Vec<OsString> {
        let mut line = vec![command.get_name().into()];
        for setting in command
            .get_arguments()
            .filter(|argument| is_setting(argument))
        {
            let flag = setting.get_long().unwrap_or_default();
            for value in self.effective.values(setting.get_id().as_str()) {
                match values::error_of(setting, value) {
                    None => {
                        let mut flag = OsString::from(format!("--{flag}="));
                        flag.push(value);
                        line.push(flag);
                    }
                    Some(error) => self.errors.add(format!("--{flag}: {error}")),
                }
            }
        }
        line
    }
}

/// Removes the environment variable of an argument if it is empty.
fn without_empty_variable(argument: Arg) -> Arg {
    let value = argument.get_env().and_then(std::env::var_os);
    if value.is_some_and(|value| value.is_empty()) {
        argument.env(Resettable::Reset)
    } else {
        argument
    }
}

/// Removes the validation of a setting, so that parsing does not stop at the first invalid value.
fn without_validation(argument: Arg) -> Arg {
    if is_setting(&argument) {
        argument.value_parser(ValueParser::os_string())
    } else {
        argument
    }
}

/// The file named by flag or environment; `None` for `--help`, which shows defaults and no secrets of a file.
fn file_of(command: &Command, arguments: &[OsString]) -> Option<NamedFile> {
    let lenient = command.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    let path = matches.get_one::<PathBuf>(FILE).cloned();
    path.map(|path| NamedFile {
        flag: "--config",
        path,
    })
}

/// A clap error, extended by the errors of the file.
fn with_errors(error: clap::Error, errors: &ConfigErrors) -> clap::Error {
    if errors.is_empty() || !error.use_stderr() {
        return error;
    }
    let message = format!("{error}\nfurther errors:\n{errors}\n");
    // clap adds its own "error: " prefix.
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    clap::Error::raw(error.kind(), message)
}

#[cfg(test)]
mod tests;
