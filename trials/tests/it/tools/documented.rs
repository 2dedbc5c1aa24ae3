//! Tests that generate the settings in docs/configuration.md, and check the documented log messages, flags,
//! guarantees and memory limits.

use std::{env, error::Error as _, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, ensure};
use clap::{Arg, Command};
use producer::{config::Config, memory};
use runtime::settings::{InvalidValue, ReloadMode, Settings, command, settings_with};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

/// The page with the section between the markers of `what` replaced.
fn with_tables(page: &str, what: &str, tables: &str) -> Result<String> {
    let begin = format!("<!-- {what}: generated from the code -->\n");
    let end = format!("<!-- end of the {what} -->\n");
    let (before, rest) = page.split_once(&begin).with_context(|| begin.clone())?;
    let (_, after) = rest.split_once(&end).with_context(|| end.clone())?;
    Ok(format!("{before}{begin}{tables}\n{end}{after}"))
}

/// Heading of the settings that all programs share.
const COMMON: &str = "Logging and diagnostics";

/// A list per group of settings of `A`, under third-level headings: only the common settings, or all others.
fn lists<A: Settings>(is_common: bool) -> String {
    let mut text = String::new();
    let mut heading = None;
    let live = settings_with::<A>(ReloadMode::Live);
    let others = [ReloadMode::FileContents, ReloadMode::Restart].map(settings_with::<A>);
    for argument in command::<A>().get_arguments() {
        let id = argument.get_id().as_str();
        let is_in = |ids: &[String]| ids.iter().any(|it| it == id);
        let is_live = is_in(&live);
        let name = argument.get_help_heading().unwrap_or("Other");
        let is_setting = is_live || others.iter().any(|ids| is_in(ids));
        if !is_setting || (name == COMMON) != is_common {
            continue;
        }
        if heading != Some(name) {
            heading = Some(name);
            text.push_str(&format!("\n### {name}\n\n"));
        }
        row(&mut text, argument, is_live);
    }
    text
}

fn row(text: &mut String, argument: &Arg, is_live: bool) {
    let id = argument.get_id().as_str();
    let flag = format!("--{}", id.replace('_', "-"));
    let variable = argument.get_env().unwrap_or_default().to_string_lossy();
    // The page derives the variable and the key from the flag.
    assert!(
        variable.ends_with(&format!("_{}", id.to_uppercase())),
        "{variable}"
    );
    let (mut help, described_default) = help(argument);
    let defaults: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .filter(|value| !value.is_empty())
        .collect();
    let value = match argument.get_value_names().unwrap_or_default().join(" ") {
        switch if switch == "true|false" => String::new(),
        name if defaults.is_empty() => format!(" {name}"),
        _ => format!("={}", defaults.join(",")),
    };
    let default = described_default.map(|default| format!(" (default: {default})"));
    let live = if is_live { " *live*" } else { "" };
    if !help.ends_with('.') {
        help.push('.');
    }
    // Zero as the minimum needs no mention.
    if let Some(range) = range(argument).filter(|range| !range.starts_with("at least 0")) {
        help.push_str(&format!(" {}.", range.replace("at least", "At least")));
    }
    let default = default.unwrap_or_default();
    let written = writeln!(text, "- `{flag}{value}`{default}{live}: {help}");
    written.expect("writing to a string never fails");
}

/// The help in one line, and the description of the default, if any.
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

/// The valid range of a setting, if it has one.
fn range(argument: &Arg) -> Option<String> {
    let value = Arg::new("value").value_parser(argument.get_value_parser().clone());
    let command = Command::new("setting").no_binary_name(true).arg(value);
    // Invalid for every setting with a range.
    let error = command.try_get_matches_from(["--", "?"]).err()?;
    let invalid = error.source()?.downcast_ref::<InvalidValue>()?;
    invalid.range.clone()
}

const MIB: u64 = 1 << 20;

/// The memory of each component of a producer with the default settings, and the sum.
fn memory_table() -> Result<String> {
    let config = Config::load(["producer".into()])?;
    let mut table = "| Component | Limit | MiB, by default |\n|---|---|---|\n".to_owned();
    for component in memory::components(&config) {
        let mib = component.bytes.div_ceil(MIB);
        writeln!(
            table,
            "| {} | {} | {mib} |",
            component.what, component.bound
        )?;
    }
    let mib = memory::bytes_max(&config).div_ceil(MIB);
    write!(table, "| **all** | | **{mib}** |")?;
    Ok(table)
}

#[test]
fn memory_limits_of_deployments_cover_the_maximum_of_a_producer() -> Result<()> {
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
        ensure!(
            limit >= mib,
            "{file}: the limit is {limit} MiB, the producer may use {mib}"
        );
    }
    Ok(())
}

/// `UPDATE_DOCS=1` rewrites the page.
#[test]
fn configuration_page_is_up_to_date() -> Result<()> {
    let page = fs::read_to_string(PAGE)?;
    let common = lists::<producer::config::Args>(true);
    let producer = lists::<producer::config::Args>(false);
    let consumer = lists::<consumer::config::Args>(false);
    let generated = with_tables(&page, "common settings", &common)?;
    let generated = with_tables(&generated, "settings of the producer", &producer)?;
    let generated = with_tables(&generated, "settings of the consumer", &consumer)?;
    let limiter = lists::<limiter::serve::config::Args>(false);
    let generated = with_tables(&generated, "settings of the limiter", &limiter)?;
    let revalidator = lists::<revalidator::config::Args>(false);
    let generated = with_tables(&generated, "settings of the revalidator", &revalidator)?;
    let generated = with_tables(&generated, "memory of the producer", &memory_table()?)?;
    if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(PAGE, generated)?;
        return Ok(());
    }
    ensure!(
        page == generated,
        "{} is outdated: run this test with UPDATE_DOCS=1",
        Path::new(PAGE).display()
    );
    Ok(())
}

/// A list of the commands, and one of the flags of all commands that have a value.
fn tool_lists() -> String {
    let mut command = cookiesync::Cli::definition();
    command.build();
    let mut text = String::from("### Commands\n\n");
    let commands = command
        .get_subcommands()
        .filter(|it| it.get_name() != "help");
    for command in commands {
        let own = command.get_arguments().filter(|it| !it.is_global_set());
        let own = own.filter(|it| it.get_id() != "help").map(|argument| {
            let names = argument.get_value_names().unwrap_or_default().join(" ");
            let default = argument.get_default_values();
            let default = default
                .iter()
                .map(|it| format!(" (default: {})", it.display()));
            match argument.get_long() {
                Some(flag) => format!(" `--{flag} {names}`{}", default.collect::<String>()),
                None => format!(" `{names}`"),
            }
        });
        let arguments: String = own.collect();
        let about = command.get_long_about().or(command.get_about());
        let about = about.map(|it| it.to_string().replace("\n\n", ". "));
        let about = about.unwrap_or_default();
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        let name = command.get_name();
        text.push_str(&format!(
            "- `{name}`{arguments}: {}.\n",
            about.trim_end_matches('.')
        ));
    }
    text.push_str("\n### Flags of all commands\n\n");
    let flags = command.get_arguments().filter(|it| it.is_global_set());
    for argument in flags.filter(|it| it.get_id() != "json") {
        row(&mut text, argument, false);
    }
    text
}

/// `UPDATE_DOCS=1` rewrites the page.
#[test]
fn page_of_the_cluster_tool_is_up_to_date() -> Result<()> {
    let path = Path::new(PAGE).with_file_name("cookiesync.md");
    let page = fs::read_to_string(&path)?;
    let generated = with_tables(&page, "commands and flags", &tool_lists())?;
    if env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, generated)?;
        return Ok(());
    }
    ensure!(
        page == generated,
        "{} is outdated: run this test with UPDATE_DOCS=1",
        path.display()
    );
    Ok(())
}

/// Collects the sources in a directory.
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

fn sources_in(dirs: &[&str]) -> Result<String> {
    let mut text = String::new();
    for dir in dirs {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(dir);
        sources(&dir, &mut text)?;
    }
    Ok(text)
}

#[test]
fn tests_of_the_documented_guarantees_exist() -> Result<()> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reliability.md");
    let page = fs::read_to_string(page)?;
    let (_, page) = page.split_once("tests\n").context("no guarantees")?;
    let (page, _) = page.split_once("## Restart outcomes").context("no end")?;
    let text = sources_in(&["trials", "producer/src", "consumer/src"])?;
    let code = page.split('`').skip(1).step_by(2);
    let is_test = |name: &&str| name.contains('_') && !name.contains(['.', '/', '-']);
    let tests: Vec<_> = code.filter(is_test).collect();
    ensure!(tests.len() > 20, "{tests:?}");
    for name in tests {
        let parts = name.split('…').filter(|part| !part.is_empty());
        for part in parts {
            ensure!(text.contains(part), "{name} is not a test");
        }
    }
    Ok(())
}

/// Flags of other programs, and of scripts.
const FOREIGN_FLAGS: &str = "bench bins build config-file dbpath features jetstream json no-deps nocapture port profile record retry \
    retry-connrefused rm storage store test tmpfs version web workspace";

#[test]
fn documented_flags_exist() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let dirs = [
        "runtime/src",
        "runtime/nats/src",
        "producer/src",
        "consumer/src",
        "limits/limiter/src",
        "revalidator/src",
        "cookiesync/src",
    ];
    let text = sources_in(
        &[
            &dirs[..],
            &["bench/src", "demo/src", "testkit/src", "trials/src"],
        ]
        .concat(),
    )?;
    let foreign: Vec<_> = FOREIGN_FLAGS.split_whitespace().collect();
    let files = fs::read_dir(&root)?.chain(fs::read_dir(root.join("docs"))?);
    for file in files {
        let path = file?.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(&path)?;
        for word in page.split([' ', '`', '(', '\n', '[', '"']) {
            let Some(flag) = word.strip_prefix("--") else {
                continue;
            };
            let end = flag.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            let flag = &flag[..end.unwrap_or(flag.len())];
            // A field of the arguments, or a name in quotes.
            let is_ours = text.contains(&format!(" {}: ", flag.replace('-', "_")))
                || text.contains(&format!("\"{flag}\""));
            ensure!(
                flag.is_empty() || is_ours || foreign.contains(&flag),
                "{}: --{flag} is not a flag",
                path.display()
            );
        }
    }
    Ok(())
}

#[test]
fn every_documented_log_message_is_in_the_code() -> Result<()> {
    let dirs = ["runtime/src", "producer/src", "consumer/src"];
    let text = sources_in(&[&dirs[..], &["limits/limiter/src", "limits/sharing/src"]].concat())?;
    let page = fs::read_to_string(PAGE)?;
    let (_, lines) = page
        .split_once("### Log messages")
        .context("no section with log messages")?;
    let (lines, _) = lines
        .split_once("\n## ")
        .context("no section after the log messages")?;
    let rows = lines.lines().filter_map(|line| line.strip_prefix("- `"));
    let messages = rows.flat_map(|row| {
        let (messages, _) = row.split_once("` (").unwrap_or_default();
        messages.split('`').step_by(2)
    });
    let messages: Vec<_> = messages.collect();
    ensure!(messages.len() > 9, "{messages:?}");
    for line in messages {
        let line = format!("\"{}", line.trim_end_matches('…'));
        ensure!(text.contains(&line), "{line} is not in the code");
    }
    Ok(())
}
