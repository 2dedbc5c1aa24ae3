//! The settings of a program as tables for its documentation, so that the page cannot say what the code does not.

use std::{ffi::OsStr, fmt::Write as _};

use clap::Arg;

use super::{Change, Settings, command, is_list, is_setting, values};

/// A table for each group of the settings of `A`, in Markdown, under headings of the third level.
#[must_use]
pub fn tables<A: Settings>() -> String {
    let mut text = String::new();
    let mut heading = None;
    let mut command = command::<A>();
    // Only then groups know who is in them.
    command.build();
    for argument in command
        .get_arguments()
        .filter(|argument| is_setting(argument))
    {
        if heading != Some(argument.get_help_heading()) {
            heading = Some(argument.get_help_heading());
            let name = argument.get_help_heading().unwrap_or("Other");
            text.push_str(&format!(
                "\n### {name}\n\n| setting | default | takes | a change | meaning |\n|---|---|---|---|---|\n"
            ));
        }
        row(&mut text, argument, Change::of(&command, argument));
    }
    text
}

fn row(text: &mut String, argument: &Arg, change: Change) {
    let id = argument.get_id().as_str();
    let flag = format!("--{}", id.replace('_', "-"));
    let variable = argument.get_env().unwrap_or_default().to_string_lossy();
    let (help, default_in_words) = help(argument);
    let written: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .filter(|value| !value.is_empty())
        .collect();
    let default = match default_in_words {
        Some(words) => words,
        None if written.is_empty() => "none".to_owned(),
        None => format!("`{}`", written.join(",")),
    };
    let names = argument.get_value_names().unwrap_or_default();
    let mut takes = names.join(" ").replace('|', " or ");
    if is_list(argument) {
        takes.push_str(", several");
    }
    // No setting with a range takes this.
    let refused = values::refusal(argument, OsStr::new("?"));
    if let Some(range) = refused.and_then(|refused| refused.range) {
        takes.push_str(&format!(", {range}"));
    }
    let change = match change {
        Change::Reloaded => "at once",
        Change::Contents => "of the file's contents: at once; of its name: restart",
        Change::Restart => "restart",
    };
    let meaning = help.replace('|', "\\|");
    let written = writeln!(
        text,
        "| `{flag}`<br>`{variable}`<br>`{id}` | {default} | {takes} | {change} | {meaning} |"
    );
    written.expect("a string takes all that is written");
}

/// The help in one line, and what it says of the default in words.
fn help(argument: &Arg) -> (String, Option<String>) {
    let help = argument
        .get_long_help()
        .or_else(|| argument.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut sentences: Vec<_> = help
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let mut default = None;
    if let Some(first) = sentences.first_mut()
        && let Some((before, after)) = first.clone().split_once(" [default: ")
    {
        default = Some(after.trim_end_matches(']').to_owned());
        before.clone_into(first);
    }
    (sentences.join(". "), default)
}
