//! Values and sources of the settings, their form as a TOML file, and the differences between two versions.

use std::{borrow::Cow, collections::BTreeMap, ffi::OsString, fmt};

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

use super::{ReloadMode, is_list, is_setting};
use crate::reload::NamedFile;

/// Source of the value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// An environment variable, by name.
    Environment(String),
    /// The file named by `--config`.
    File,
    /// The built-in default.
    Default,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its key in the file.
    pub id: String,
    /// Source of the value.
    pub source: Source,
    /// How a change takes effect while the process runs.
    pub reload_mode: ReloadMode,
    heading: String,
    values: Vec<OsString>,
    is_default: bool,
    is_list: bool,
}

/// All settings, in the order of the help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveSettings {
    settings: Vec<Setting>,
    program: String,
    file: Option<String>,
}

impl EffectiveSettings {
    pub(super) fn of(
        command: &Command,
        matches: &ArgMatches,
        mut in_file: BTreeMap<String, Vec<OsString>>,
        file: Option<&NamedFile>,
    ) -> Self {
        let settings = command
            .get_arguments()
            .filter(|argument| is_setting(argument))
            .map(|argument| Setting::of(command, argument, matches, &mut in_file));
        Self {
            settings: settings.collect(),
            program: command.get_name().to_owned(),
            file: file.map(|file| file.path.display().to_string()),
        }
    }

    /// The unparsed value of a setting; empty if it is unset or unknown.
    pub fn value(&self, id: &str) -> Cow<'_, str> {
        let first = self.values(id).first();
        first.map_or(Cow::default(), |value| value.to_string_lossy())
    }

    /// All values of a setting.
    pub(super) fn values(&self, id: &str) -> &[OsString] {
        let setting = self.settings.iter().find(|setting| setting.id == id);
        setting.map_or(&[], |setting| &setting.values)
    }

    /// Settings whose values differ from those in `running`.
    pub fn differences(&self, running: &Self) -> Vec<&Setting> {
        let is_in = |new: &Setting| {
            let same = |old: &Setting| old.id == new.id && old.values == new.values;
            running.settings.iter().any(same)
        };
        let all = self.settings.iter();
        all.filter(|setting| !is_in(setting)).collect()
    }

    /// The settings that differ from their defaults, as `key=value` without secrets.
    pub(crate) fn non_defaults(&self) -> String {
        let changed = self.settings.iter().filter(|setting| !setting.is_default);
        let pairs = changed
            .map(|setting| format!("{}={}", setting.id, setting.redacted_values().join(",")));
        pairs.collect::<Vec<_>>().join(" ")
    }

    /// The values of each setting, separated by commas and without secrets.
    pub(super) fn values_by_key(&self) -> BTreeMap<String, String> {
        let pairs = self.settings.iter();
        let pairs = pairs.map(|it| (it.id.clone(), it.redacted_values().join(",")));
        pairs.collect()
    }

    /// Replaces one setting.
    pub(super) fn replace(&mut self, setting: &Setting) {
        for own in &mut self.settings {
            if own.id == setting.id {
                own.clone_from(setting);
            }
        }
    }
}

impl Setting {
    fn of(
        command: &Command,
        argument: &Arg,
        matches: &ArgMatches,
        in_file: &mut BTreeMap<String, Vec<OsString>>,
    ) -> Self {
        let id = argument.get_id().as_str();
        let values = matches.get_raw(id).into_iter().flatten();
        let values = values.map(ToOwned::to_owned).collect();
        let (source, values) = match (matches.value_source(id), in_file.remove(id)) {
            (Some(ValueSource::CommandLine), _) => (Source::Flag, values),
            (Some(ValueSource::EnvVariable), _) => {
                let variable = argument.get_env().unwrap_or_default();
                let variable = variable.to_string_lossy().into_owned();
                (Source::Environment(variable), values)
            }
            (_, Some(values)) => (Source::File, values),
            (_, None) => (Source::Default, values),
        };
        Self {
            id: id.to_owned(),
            source,
            reload_mode: ReloadMode::of(command, argument),
            heading: argument.get_help_heading().unwrap_or_default().to_owned(),
            is_default: argument.get_default_values() == values,
            values,
            is_list: is_list(argument),
        }
    }

    /// Its flag.
    pub fn flag(&self) -> String {
        format!("--{}", self.id.replace('_', "-"))
    }

    fn redacted_values(&self) -> Vec<String> {
        let values = self.values.iter().map(|value| value.to_string_lossy());
        values.map(|value| redacted(&value)).collect()
    }

    fn is_set(&self) -> bool {
        self.values.iter().any(|value| !value.is_empty())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => formatter.write_str("flag"),
            Self::Environment(variable) => write!(formatter, "environment {variable}"),
            Self::File => formatter.write_str("file"),
            Self::Default => formatter.write_str("default"),
        }
    }
}

/// A TOML file with the same settings, except that secrets are [`redacted`]. Settings reject redacted values, so that no
/// process runs with them.
impl fmt::Display for EffectiveSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "# Settings of {}", self.program)?;
        if let Some(file) = &self.file {
            writeln!(formatter, "# file: {file}")?;
        }
        let mut heading = "";
        for setting in &self.settings {
            if setting.heading != heading {
                heading = &setting.heading;
                writeln!(formatter, "\n# {heading}")?;
            }
            writeln!(formatter, "{setting}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.redacted_values();
        let is_complete = shown
            .iter()
            .zip(&self.values)
            .all(|(shown, value)| value == shown.as_str());
        let quoted: Vec<_> = shown
            .into_iter()
            .map(|value| toml::Value::String(value).to_string())
            .collect();
        let value = if self.is_list {
            format!("[{}]", quoted.join(", "))
        } else {
            quoted
                .into_iter()
                .next()
                .unwrap_or_else(|| "\"\"".to_owned())
        };
        write!(formatter, "{} = {value}  # {}", self.id, self.source)?;
        if !is_complete {
            formatter.write_str("; secret removed: insert it here")?;
        } else if !self.is_set() {
            formatter.write_str("; unset")?;
        }
        Ok(())
    }
}

/// Removes user, password and options from a URL or connection string; returns other text unchanged.
pub fn redacted(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let (rest, options) = match rest.split_once('?') {
        Some((rest, _)) => (rest, "?***"),
        None => (rest, ""),
    };
    match rest.rsplit_once('@') {
        Some((_, hosts)) => format!("{scheme}://***@{hosts}{options}"),
        None => format!("{scheme}://{rest}{options}"),
    }
}

/// Whether the text is a URL or connection string with parts removed by [`redacted`].
pub fn is_redacted(text: &str) -> bool {
    text.contains("://***@") || text.ends_with("?***")
}
