//! docs/configuration.md is what the code says.

use std::{env, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, ensure};
use producer::{config::Config, memory};
use runtime::settings::reference::tables;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

/// The page with what stands between the marks of `what` replaced.
fn with_tables(page: &str, what: &str, tables: &str) -> Result<String> {
    let begin = format!("<!-- {what}: made from the code -->\n");
    let end = format!("<!-- end of the {what} -->\n");
    let (before, rest) = page.split_once(&begin).with_context(|| begin.clone())?;
    let (_, after) = rest.split_once(&end).with_context(|| end.clone())?;
    Ok(format!("{before}{begin}{tables}\n{end}{after}"))
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
fn sources(folder: &Path, text: &mut String) -> Result<()> {
    for entry in fs::read_dir(folder)? {
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
    for folder in [
        "runtime/src",
        "producer/src",
        "consumer/src",
        "limits/limiter/src",
        "limits/sharing/src",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(folder);
        sources(&folder, &mut text)?;
    }
    let page = fs::read_to_string(PAGE)?;
    let (_, lines) = page
        .split_once("### Lines to look for")
        .context("no lines")?;
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
