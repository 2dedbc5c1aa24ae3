//! The TOML file, whose keys are the names of settings.

use std::{collections::BTreeMap, ffi::OsString};

use clap::{Arg, Command};

use super::{ConfigErrors, is_list, is_setting};
use crate::reload::NamedFile;

/// Values of the valid settings in the file, by name. Records the errors of invalid ones.
pub(super) fn values(
    command: &Command,
    file: &NamedFile,
    errors: &mut ConfigErrors,
) -> BTreeMap<String, Vec<OsString>> {
    let path = file.path.display();
    let table = file.read().and_then(|bytes| {
        let text = String::from_utf8(bytes).map_err(|_| file.error("is not UTF-8"))?;
        text.parse::<toml::Table>()
            .map_err(|error| file.error(without_source(&text, &error)))
    });
    let table = table.unwrap_or_else(|error| {
        errors.add(error);
        toml::Table::new()
    });
    let mut found = BTreeMap::new();
    for (key, value) in table {
        let mut settings = command.get_arguments().filter(|known| is_setting(known));
        let values = match settings.find(|setting| setting.get_id() == key.as_str()) {
            None => Err(unknown(&key, &value, command)),
            Some(setting) => values_of(setting, &value),
        };
        if let Some(values) = errors.ok(&path.to_string(), values) {
            found.insert(key, values);
        }
    }
    found
}

/// The line number and the message, without the line itself, which may contain credentials.
fn without_source(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

/// The error for an unknown key, with a suggestion.
fn unknown(key: &str, value: &toml::Value, command: &Command) -> String {
    if value.is_table() {
        return format!(
            "unknown key {key}: tables are not supported; remove the table header, which captures all keys below it"
        );
    }
    let settings = command.get_arguments().filter(|known| is_setting(known));
    let nearest = settings
        .map(|setting| setting.get_id().as_str())
        .map(|id| (strsim::damerau_levenshtein(&key.replace('-', "_"), id), id))
        .min();
    match nearest {
        // Suggests corrections of typing errors, not different words.
        Some((edits, id)) if edits <= (id.len() / 4).max(1) => {
            format!("unknown key {key}: did you mean {id}?")
        }
        _ => format!("unknown key {key}"),
    }
}

fn values_of(setting: &Arg, value: &toml::Value) -> Result<Vec<OsString>, String> {
    let (key, may_be_list) = (setting.get_id(), is_list(setting));
    let found = match value {
        toml::Value::Array(_) if !may_be_list => {
            return Err(format!("{key} must be a single value"));
        }
        toml::Value::Array(list) => list.iter().map(scalar).collect::<Option<Vec<_>>>(),
        scalar_value => scalar(scalar_value).map(|scalar| vec![scalar]),
    };
    let Some(found) = found else {
        let list = if may_be_list {
            ", or a list of them"
        } else {
            ""
        };
        return Err(format!(
            "{key} must be a string, a number or a boolean{list}"
        ));
    };
    Ok(match setting.get_value_delimiter() {
        None => found.into_iter().map(Into::into).collect(),
        Some(delimiter) => {
            let parts = found.iter().flat_map(|value| value.split(delimiter));
            parts.map(Into::into).collect()
        }
    })
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(string) => Some(string.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(boolean) => Some(boolean.to_string()),
        _ => None,
    }
}
