//! The TOML file: its values become the defaults of the flags they are named after.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use clap::{Arg, Command};

use super::{Mistakes, former_ids, is_list, is_setting};

/// Largest file that is read: far beyond any settings.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The command with the file's values for defaults, and the names of the settings that the file has; what is wrong with
/// the file is left out and noted.
pub(super) fn with_file(
    command: Command,
    path: &Path,
    mistakes: &mut Mistakes,
) -> (Command, BTreeSet<String>) {
    let mut found = BTreeMap::new();
    let table = read(path).and_then(|text| {
        text.parse::<toml::Table>()
            .map_err(|error| without_source(&text, &error))
    });
    let place = path.display();
    let table = match table {
        Ok(table) => table,
        Err(error) => {
            mistakes.add(format!("{place}: {error}"));
            return (command, BTreeSet::new());
        }
    };
    for (key, value) in table {
        let is_named = |argument: &&Arg| {
            is_setting(argument)
                && (argument.get_id() == key.as_str() || former_ids(argument).any(|id| id == key))
        };
        let values = match command.get_arguments().find(is_named) {
            None => Err(unknown(&key, &value, &command)),
            Some(setting) => values(&key, &value, is_list(setting))
                .map(|values| (setting.get_id().to_string(), values)),
        };
        let mistake = match values {
            Ok((id, _)) if found.contains_key(&id) => {
                format!("{id} is set twice, once by a former name")
            }
            Ok((id, values)) => {
                found.insert(id, values);
                continue;
            }
            Err(mistake) => mistake,
        };
        mistakes.add(format!("{place}: {mistake}"));
    }
    let keys = found.keys().cloned().collect();
    // All in one pass: changing single arguments would change their order.
    let command = command.mut_args(|argument| match found.remove(argument.get_id().as_str()) {
        Some(values) => argument.default_values(values),
        None => argument,
    });
    (command, keys)
}

/// What the file holds.
///
/// # Errors
/// In words, when it cannot be read.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let read = || {
        let mut text = String::new();
        let file = File::open(path)?;
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
        io::Result::Ok(text)
    };
    let text = read().map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err("is larger than 1 MiB".to_owned());
    }
    Ok(text)
}

/// Where and what, but not the line itself: it may hold credentials.
fn without_source(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

/// Says that a key is not a setting, and which one may be meant.
fn unknown(key: &str, value: &toml::Value, command: &Command) -> String {
    if value.is_table() {
        return format!(
            "unknown key {key}: there are no tables, and what follows one is part of it"
        );
    }
    let settings = command.get_arguments().filter(|known| is_setting(known));
    let nearest = settings
        .map(|setting| setting.get_id().as_str())
        .map(|id| (strsim::damerau_levenshtein(&key.replace('-', "_"), id), id))
        .min();
    match nearest {
        // A slip or two of the hand, and no other word.
        Some((slips, id)) if slips <= (id.len() / 4).max(1) => {
            format!("unknown key {key}: did you mean {id}?")
        }
        _ => format!("unknown key {key}"),
    }
}

fn values(key: &str, value: &toml::Value, may_be_list: bool) -> Result<Vec<String>, String> {
    let found = match value {
        toml::Value::Array(_) if !may_be_list => return Err(format!("{key} takes one value")),
        toml::Value::Array(list) => list.iter().map(scalar).collect(),
        scalar_value => scalar(scalar_value).map(|scalar| vec![scalar]),
    };
    found.ok_or_else(|| {
        let list = if may_be_list {
            ", or a list of these"
        } else {
            ""
        };
        format!("{key} must be a string, a number or a boolean{list}")
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
