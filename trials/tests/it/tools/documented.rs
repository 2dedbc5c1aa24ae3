//! docs/configuration.md is what the code says.

use std::{env, error::Error as _, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, ensure};
use clap::{Arg, ArgAction, Command};
use producer::{config::Config, memory};
use runtime::settings::{Refused, ReloadMode, Settings, command, settings_with};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

/// The page with what stands between the marks of `what` replaced.
fn with_tables(page: &str, what: &str, tables: &str) -> Result<String> {
    let begin = format!("<!-- {what}: made from the code -->\n");
    let end = format!("<!-- end of the {what} -->\n");
    let (before, rest) = page.split_once(&begin).with_context(|| begin.clone())?;
    let (_, after) = rest.split_once(&end).with_context(|| end.clone())?;
    Ok(format!("{before}{begin}{tables}\n{end}{after}"))
}

/// A table for each group of the settings of `A`, in Markdown, under headings of the third level.
fn tables<A: Settings>() -> String {
    let mut text = String::new();
    let mut heading = None;
    let changes = [
        (ReloadMode::Live, "at once"),
        (
            ReloadMode::FileContents,
            "of the file's contents: at once; of its name: restart",
        ),
        (ReloadMode::Restart, "restart"),
    ];
    let changes = changes.map(|(change, words)| (settings_with::<A>(change), words));
    for argument in command::<A>().get_arguments() {
        let is_in = |ids: &[String]| ids.iter().any(|id| argument.get_id() == id.as_str());
        let Some((_, change)) = changes.iter().find(|(ids, _)| is_in(ids)) else {
            continue;
        };
        if heading != Some(argument.get_help_heading()) {
            heading = Some(argument.get_help_heading());
            let name = argument.get_help_heading().unwrap_or("Other");
            text.push_str(&format!(
                "\n### {name}\n\n| setting | default | takes | a change | meaning |\n|---|---|---|---|---|\n"
            ));
        }
        row(&mut text, argument, change);
    }
    text
}

fn row(text: &mut String, argument: &Arg, change: &str) {
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
    if matches!(argument.get_action(), ArgAction::Append) {
        takes.push_str(", several");
    }
    if let Some(range) = range(argument) {
        takes.push_str(&format!(", {range}"));
    }
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

/// What a setting takes, where that is a range.
fn range(argument: &Arg) -> Option<String> {
    let value = Arg::new("value").value_parser(argument.get_value_parser().clone());
    let alone = Command::new("setting").no_binary_name(true).arg(value);
    // No setting with a range takes this.
    let error = alone.try_get_matches_from(["--", "?"]).err()?;
    let refused = error.source()?.downcast_ref::<Refused>()?;
    refused.range.clone()
}

const MIB: u64 = 1 << 20;

/// What each part of a producer takes with the default settings, and their sum.
fn memory_table() -> Result<String> {
    let config = Config::load(["producer".into()])?;
    let mut table = "| what | bound | MiB, with the defaults |\n|---|---|---|\n".to_owned();
    for part in memory::parts(&config) {
        let mib = part.bytes.div_ceil(MIB);
        writeln!(table, "| {} | {} | {mib} |", part.what, part.bound)?;
    }
    let mib = memory::bytes_max(&config).div_ceil(MIB);
    write!(table, "| **all** | | **{mib}** |")?;
    Ok(table)
}

#[test]
fn deployed_producers_have_the_memory_that_they_may_take() -> Result<()> {
    let mib = memory::bytes_max(&Config::load(["producer".into()])?).div_ceil(MIB);
    for (file, before) in [
        ("deploy/kubernetes/base/producer.yaml", "limits: {memory: "),
        ("deploy/systemd/cookiesync-producer.service", "MemoryHigh="),
        ("docker-compose.yml", "mem_limit: "),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        let text = fs::read_to_string(path)?;
        let (_, limit) = text.split_once(before).context(file)?;
        let digits = limit.find(|next: char| !next.is_ascii_digit());
        let limit: u64 = limit[..digits.context(file)?].parse()?;
        ensure!(limit >= mib, "{file}: {limit} MiB, of {mib}");
    }
    Ok(())
}

/// `UPDATE_DOCS=1` writes the page anew.
#[test]
fn configuration_page_is_what_the_code_says() -> Result<()> {
    let page = fs::read_to_string(PAGE)?;
    let producer = tables::<producer::config::Args>();
    let consumer = tables::<consumer::config::Args>();
    let made = with_tables(&page, "settings of the producer", &producer)?;
    let made = with_tables(&made, "settings of the consumer", &consumer)?;
    let limiter = tables::<limiter::serve::config::Args>();
    let made = with_tables(&made, "settings of the limiter", &limiter)?;
    let made = with_tables(&made, "memory of the producer", &memory_table()?)?;
    if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(PAGE, made)?;
        return Ok(());
    }
    ensure!(
        page == made,
        "{} is not what the code says: run this test with UPDATE_DOCS=1",
        Path::new(PAGE).display()
    );
    Ok(())
}

/// The sources of what runs: all that may write a line of the log.
fn sources(dir: &Path, text: &mut String) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[test]
fn every_documented_line_of_the_log_is_in_the_code() -> Result<()> {
    let mut text = String::new();
    for dir in [
        "runtime/src",
        "producer/src",
        "consumer/src",
        "limits/limiter/src",
        "limits/sharing/src",
    ] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir);
        sources(&dir, &mut text)?;
    }
    let page = fs::read_to_string(PAGE)?;
    let (_, lines) = page.split_once("### Log messages").context("no lines")?;
    let (lines, _) = lines
        .split_once("## Profiles")
        .context("no end of the lines")?;
    let rows = lines.lines().filter(|line| line.starts_with("| `"));
    let written = rows.flat_map(|row| {
        let first = row.split('|').nth(1).unwrap_or_default();
        first.split('`').skip(1).step_by(2)
    });
    let written: Vec<_> = written.collect();
    ensure!(written.len() > 30, "{written:?}");
    for line in written {
        let line = format!("\"{}", line.trim_end_matches('…'));
        ensure!(text.contains(&line), "{line} is nowhere in the code");
    }
    Ok(())
}
