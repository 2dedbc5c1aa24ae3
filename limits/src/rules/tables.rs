//! Reads a TOML file table by table, so that the errors of all tables are reported together, with their lines.

use std::{collections::BTreeMap, fmt};

use serde::de::DeserializeOwned;
use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

use super::ConfigErrors;

/// Path of the table of shared limits, whose values may be secret.
pub(super) const SHARING: &str = "sharing";

/// Maximum number of errors of one table.
const ERRORS_MAX: usize = 32;

/// The line of each key and array element, by its path, such as `limits.a.rules[0]`.
type Lines = BTreeMap<String, usize>;

/// The errors found in the tables of a file.
#[derive(Debug, Default)]
pub struct Tables {
    errors: Vec<String>,
    /// Empty if the tables do not come from a file.
    lines: Lines,
    /// Paths of moved tables, each with its path in the file.
    moved: Vec<(String, String)>,
}

impl Tables {
    /// Parses TOML.
    ///
    /// # Errors
    /// If the syntax is invalid.
    pub fn parse(text: &str) -> Result<(Table, Self), ConfigErrors> {
        let table = text.parse().map_err(|error: toml::de::Error| {
            // Only the line number, because the line may contain a password.
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            ConfigErrors(vec![format!("line {line}: {}", error.message())])
        })?;
        let tables = Self {
            lines: lines(text),
            ..Self::default()
        };
        Ok((table, tables))
    }

    /// Removes the errors so far, for a caller that reports them together with those of another reader.
    pub fn take_errors(&mut self) -> Vec<String> {
        std::mem::take(&mut self.errors)
    }

    /// Returns `value`, which was read from the tables.
    ///
    /// # Errors
    /// All errors that were added.
    pub fn finish<T>(self, value: T) -> Result<T, ConfigErrors> {
        if self.errors.is_empty() {
            Ok(value)
        } else {
            Err(ConfigErrors(self.errors))
        }
    }

    /// Reports errors below the path `to` as errors below `from`, where the table is in the file.
    pub fn moved(&mut self, from: &str, to: &str) {
        self.moved.push((to.to_owned(), from.to_owned()));
    }

    /// Adds an error about the key or table with this path, such as `limits.a.rules[0]`.
    pub fn error(&mut self, path: &str, what: impl fmt::Display) {
        self.error_at(path, path, what);
    }

    /// Adds an error, with the line of the longest known prefix of the path `place`.
    fn error_at(&mut self, place: &str, path: &str, what: impl fmt::Display) {
        let is_in = |path: &str, table: &str| {
            let rest = path.strip_prefix(table);
            rest.is_some_and(|it| it.is_empty() || it.starts_with(['.', '[']))
        };
        let in_file = |path: &str| {
            let moved = self.moved.iter().find(|(to, _)| is_in(path, to));
            moved.map_or_else(
                || path.to_owned(),
                |(to, from)| format!("{from}{}", &path[to.len()..]),
            )
        };
        let (place, path) = (in_file(place), in_file(path));
        let known = self.lines.iter().filter(|(known, _)| is_in(&place, known));
        let line = known.max_by_key(|(known, _)| known.len());
        let line = line.map_or(String::new(), |(_, line)| format!("line {line}: "));
        let path = if path.is_empty() { "the file" } else { &path };
        self.errors.push(format!("{line}{path}: {what}"));
    }

    /// Deserializes one table; `None` with its errors if it is invalid. `others` are valid keys that the caller has removed from it.
    pub fn table<T: DeserializeOwned>(
        &mut self,
        path: &str,
        value: Value,
        others: &[&str],
    ) -> Option<T> {
        let (table, is_complete) = self.valid_part(path, value, others)?;
        is_complete.then_some(table)
    }

    /// Deserializes the valid keys of one table, and reports all others. Returns whether there are no others; if there are, values
    /// of the table must not be checked against each other. `None` if the table cannot be deserialized without them.
    pub fn valid_part<T: DeserializeOwned>(
        &mut self,
        path: &str,
        mut value: Value,
        others: &[&str],
    ) -> Option<(T, bool)> {
        // The value may be a password, so only its type is reported.
        if !value.is_table() {
            self.error(path, format!("expected a table, not {}", value.type_str()));
            return None;
        }
        let mut reported = Vec::new();
        for count in 0..ERRORS_MAX {
            let error: toml::de::Error = match value.clone().try_into() {
                Ok(table) => return Some((table, count == 0)),
                Err(error) => error,
            };
            let (message, text) = (error.message(), error.to_string());
            let missing = message
                .strip_prefix("missing field `")
                .and_then(|it| it.strip_suffix('`'));
            // The invalid value of this key was removed.
            if missing.is_some_and(|it| reported.iter().any(|key| key == it)) {
                return None;
            }
            // The text ends with "in `FIELD`" if the value of a field is invalid.
            let field = text
                .strip_prefix(message)
                .and_then(|it| it.split('`').nth(1));
            let others = if field.is_none() { others } else { &[] };
            let (key, mut what) = explain(message, others);
            if path == SHARING && field.is_some() {
                // The rejected value may be a misplaced URL with a password, so only the hint after it is reported.
                let mut hint = [", expected", ": write", ": use"].iter();
                let hint = hint.find_map(|it| message.rfind(it));
                what = format!("invalid value{}", &message[hint.unwrap_or(message.len())..]);
            }
            let field = field.unwrap_or_default();
            let invalid = child(field, key);
            self.error_at(&child(path, &invalid), &child(path, field), what);
            if !remove(&mut value, &invalid) {
                return None;
            }
            reported.push(invalid);
        }
        None
    }
}

/// Removes a key, or one of a table in the table; false if there is none.
fn remove(value: &mut Value, path: &str) -> bool {
    let Value::Table(table) = value else {
        return false;
    };
    if table.remove(path).is_some() {
        return true;
    }
    let inner = path.split_once('.');
    inner.is_some_and(|(key, path)| table.get_mut(key).is_some_and(|it| remove(it, path)))
}

fn child(path: &str, key: &str) -> String {
    let dot = if path.is_empty() || key.is_empty() {
        ""
    } else {
        "."
    };
    [path, dot, key].concat()
}

/// Rewrites an error about an unknown key or value, so that it lists `others` too. Returns the unknown key, if any, and the error.
fn explain<'a>(error: &'a str, others: &[&'a str]) -> (&'a str, String) {
    let parts = || {
        let (kind, rest) = error.strip_prefix("unknown ")?.split_once(" `")?;
        let (unknown, expected) = rest.split_once('`')?;
        Some((kind == "field", unknown, expected))
    };
    let Some((is_key, unknown, expected)) = parts() else {
        return ("", error.to_owned());
    };
    let known = expected.split('`').skip(1).step_by(2);
    let others = others.iter().filter(|_| is_key).copied();
    let known: Vec<&str> = known.chain(others).collect();
    let (key, what) = match is_key {
        true => (unknown, "key"),
        false => ("", "value"),
    };
    let known = known.join("`, `");
    (
        key,
        format!("unknown {what} `{unknown}`, expected one of `{known}`"),
    )
}

/// The lines of a valid TOML document.
fn lines(text: &str) -> Lines {
    let mut lines = Lines::new();
    for (key, value) in DeTable::parse(text).iter().flat_map(|it| it.get_ref()) {
        add_lines(text, key.get_ref().to_string(), value, &mut lines);
    }
    lines
}

fn add_lines(text: &str, path: String, value: &Spanned<DeValue<'_>>, lines: &mut Lines) {
    if let DeValue::Table(table) = value.get_ref() {
        for (key, value) in table {
            let path = format!("{path}.{}", key.get_ref().escape_debug());
            add_lines(text, path, value, lines);
        }
    }
    let array = value.get_ref().as_array();
    for (index, value) in array.into_iter().flat_map(|it| it.iter().enumerate()) {
        add_lines(text, format!("{path}[{index}]"), value, lines);
    }
    lines.insert(path, line_of(text, value.span().start));
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or_default();
    before.matches('\n').count() + 1
}
