//! docs/configuration.md is what the code says.

use std::{env, fs, path::Path};

use anyhow::{Context, Result, ensure};
use cookiesync::process::settings::reference::tables;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

/// The page with what stands between the marks of `program` replaced.
fn with_tables(page: &str, program: &str, tables: &str) -> Result<String> {
    let begin = format!("<!-- settings of the {program}: made from the code -->\n");
    let end = format!("<!-- end of the settings of the {program} -->\n");
    let (before, rest) = page.split_once(&begin).with_context(|| begin.clone())?;
    let (_, after) = rest.split_once(&end).with_context(|| end.clone())?;
    Ok(format!("{before}{begin}{tables}\n{end}{after}"))
}

/// `UPDATE_DOCS=1` writes the page anew.
#[test]
fn configuration_page_is_what_the_code_says() -> Result<()> {
    let page = fs::read_to_string(PAGE)?;
    let made = with_tables(&page, "producer", &tables::<producer::config::Args>())?;
    let made = with_tables(&made, "consumer", &tables::<consumer::config::Args>())?;
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
    for folder in ["proto", "producer/src", "consumer/src"] {
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
