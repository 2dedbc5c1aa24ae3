//! What the settings are and where each comes from; their form as a file, and what differs between two of them.

use std::{borrow::Cow, collections::BTreeMap, ffi::OsString, fmt};

use clap::{Arg, ArgMatches, Command, parser::ValueSource};

use super::{ReloadMode, is_list, is_setting};
use crate::reload::NamedFile;

/// Where the value of a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// This environment variable.
    Environment(String),
    /// The file of `--config`.
    File,
    /// The program.
    Default,
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name in the file.
    pub id: String,
    /// Where its value is from.
    pub source: Source,
    /// What becomes of a change while the process runs.
    pub change: ReloadMode,
    heading: String,
    values: Vec<OsString>,
    is_list: bool,
}

/// All settings, in the order of the help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effective {
    settings: Vec<Setting>,
    program: String,
    file: Option<String>,
}

impl Effective {
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

    /// The value of a setting as it was written; empty when it is not set or no setting.
    #[must_use]
    pub fn value(&self, id: &str) -> Cow<'_, str> {
        let first = self.values(id).first();
        first.map_or(Cow::default(), |value| value.to_string_lossy())
    }

    /// All its values.
    pub(super) fn values(&self, id: &str) -> &[OsString] {
        let setting = self.settings.iter().find(|setting| setting.id == id);
        setting.map_or(&[], |setting| &setting.values)
    }

    /// The settings whose values differ from those of `running`.
    #[must_use]
    pub fn differences(&self, running: &Self) -> Vec<&Setting> {
        let is_in = |new: &Setting| {
            let same = |old: &Setting| old.id == new.id && old.values == new.values;
            running.settings.iter().any(same)
        };
        let all = self.settings.iter();
        all.filter(|setting| !is_in(setting)).collect()
    }

    /// Takes over the value of one setting.
    pub(super) fn take(&mut self, setting: &Setting) {
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
        let given = matches.get_raw(id).into_iter().flatten();
        let given = given.map(ToOwned::to_owned).collect();
        let (source, values) = match (matches.value_source(id), in_file.remove(id)) {
            (Some(ValueSource::CommandLine), _) => (Source::Flag, given),
            (Some(ValueSource::EnvVariable), _) => {
                let variable = argument.get_env().unwrap_or_default();
                let variable = variable.to_string_lossy().into_owned();
                (Source::Environment(variable), given)
            }
            (_, Some(values)) => (Source::File, values),
            (_, None) => (Source::Default, given),
        };
        Self {
            id: id.to_owned(),
            source,
            change: ReloadMode::of(command, argument),
            heading: argument.get_help_heading().unwrap_or_default().to_owned(),
            values,
            is_list: is_list(argument),
        }
    }

    /// Its name as a flag.
    #[must_use]
    pub fn flag(&self) -> String {
        format!("--{}", self.id.replace('_', "-"))
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

/// As a file that gives the same settings, but for secrets: what holds one is shown without it, in a form that
/// [`is_redacted`] knows and that is refused, so that nothing else is used in its place.
impl fmt::Display for Effective {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "# The settings of {}", self.program)?;
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
        let values = self.values.iter().map(|value| value.to_string_lossy());
        let shown: Vec<_> = values.map(|value| redacted(&value)).collect();
        let is_whole = shown
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
        if !is_whole {
            formatter.write_str("; its secret is left out: write it here")?;
        } else if !self.is_set() {
            formatter.write_str("; not set")?;
        }
        Ok(())
    }
}

/// A URL or connection string without user, password and options, any of which may be secret; any other text as it is.
#[must_use]
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

/// Whether this is a URL or connection string some of which [`redacted`] has left out.
#[must_use]
pub fn is_redacted(text: &str) -> bool {
    text.contains("://***@") || text.ends_with("?***")
}
