//! The result of a command: rows, problems, and an exit code.

use std::{cmp::Reverse, collections::BTreeMap, process::ExitCode, time::Duration};

use comfy_table::{Table, presets::NOTHING};
use serde_json::{Value, json};

use crate::NOT_ASKED;

/// Maximum number of names in a message.
const NAMES_MAX: usize = 5;

/// Rows of values by column, and problems.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The columns of the table, separated by spaces; JSON has all values of a row. Those that end with `_seconds` are times.
    pub(crate) columns: &'static str,
    pub(crate) rows: Vec<Value>,
    pub(crate) problems: Vec<String>,
    /// Whether any process has responded.
    pub(crate) is_answered: bool,
}

impl Report {
    pub(crate) fn new(columns: &'static str) -> Self {
        Self {
            columns,
            ..Self::default()
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match (self.is_answered, self.problems.is_empty()) {
            (false, _) => ExitCode::from(NOT_ASKED),
            (true, false) => ExitCode::FAILURE,
            (true, true) => ExitCode::SUCCESS,
        }
    }

    pub(crate) fn problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    pub(crate) fn print(&self, is_json: bool) -> String {
        if is_json {
            return format!(
                "{}\n",
                json!({ "rows": self.rows, "problems": self.problems })
            );
        }
        let is_shown = |column: &&str| self.rows.iter().any(|row| !row[*column].is_null());
        let shown: Vec<_> = self.columns.split(' ').filter(is_shown).collect();
        let mut table = Table::new();
        table.load_style(NOTHING);
        let heading = |it: &&str| {
            it.trim_end_matches("_seconds")
                .replace('_', " ")
                .to_uppercase()
        };
        table.set_header(shown.iter().map(heading));
        for row in &self.rows {
            table.add_row(shown.iter().map(|column| cell(column, &row[column])));
        }
        let mut text = String::new();
        if !self.rows.is_empty() {
            text = table.trim_fmt() + "\n";
        }
        for problem in &self.problems {
            text.push_str(&format!("PROBLEM  {}\n", printable(problem)));
        }
        text
    }
}

/// A value in a table.
fn cell(column: &str, value: &Value) -> String {
    let text = match value {
        Value::Null => "–".to_owned(),
        Value::Number(number) if column.ends_with("_seconds") => {
            let time = Duration::from_secs(number.as_u64().unwrap_or(0));
            let text = humantime::format_duration(time).to_string();
            // Two units are enough.
            text.split(' ').take(2).collect::<Vec<_>>().join(" ")
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    printable(&text)
}

/// The text without control characters, which a terminal would interpret.
pub(crate) fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A text in a response; empty if it is missing.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// A list in a response; empty if it is missing.
pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Some of the names, and how many others there are.
pub(crate) fn names(names: &[impl AsRef<str>]) -> String {
    let mut text: Vec<_> = names.iter().take(NAMES_MAX).map(AsRef::as_ref).collect();
    let more = format!("{} more", names.len().saturating_sub(NAMES_MAX));
    if names.len() > NAMES_MAX {
        text.push(&more);
    }
    text.join(", ")
}

/// A message about values that should be the same, with the names of those who have each; `None` if they are.
pub(crate) fn difference<'a>(
    what: &str,
    values: impl IntoIterator<Item = (&'a str, String)>,
) -> Option<String> {
    let mut by_value: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, value) in values {
        by_value.entry(value).or_default().push(name);
    }
    let mut all: Vec<_> = by_value.into_iter().collect();
    all.sort_by_key(|(_, names)| Reverse(names.len()));
    let parts = all
        .iter()
        .map(|(value, who)| format!("{value} at {}", names(who)));
    (all.len() > 1).then(|| format!("{what} differs: {}", parts.collect::<Vec<_>>().join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_no_empty_columns_and_no_control_characters() {
        let mut report = Report::new("name uptime_seconds lag rate");
        report
            .rows
            .push(json!({"name": "a\u{1b}[31m", "uptime_seconds": 93_784, "lag": null, "rate": 7}));
        report
            .rows
            .push(json!({"name": "b", "uptime_seconds": null, "rate": 8, "more": [1]}));
        report.problem("line\nbreak");
        let expected = " NAME    UPTIME  RATE\n a [31m  1day 2h  7\n b       –        8\nPROBLEM  line break\n";
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&report.print(false)), words(expected));
        let json: Value = serde_json::from_str(&report.print(true)).unwrap();
        assert_eq!(json["rows"][1]["more"], json!([1]));
        assert_eq!(json["problems"], json!(["line\nbreak"]));
    }

    #[test]
    fn difference_names_the_minority_last() {
        let nodes: Vec<_> = (0..8).map(|at| format!("n{at}")).collect();
        let values = |odd: usize| {
            let value = move |at| if at < odd { "7d" } else { "14d" }.to_owned();
            let nodes = nodes.iter().enumerate();
            nodes.map(move |(at, name)| (&**name, value(at)))
        };
        assert_eq!(difference("--ttl", values(0)), None);
        assert_eq!(
            difference("--ttl", values(1)).unwrap(),
            "--ttl differs: 14d at n1, n2, n3, n4, n5, 2 more; 7d at n0"
        );
    }
}
