//! Tests that every metric is on the metrics page if a text or a source names it, or a process exports it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    sync::OnceLock,
};

use anyhow::{Result, bail, ensure};
use testkit::scrape::Samples;

use super::{PAGE, UPDATE, root};

/// The metrics on the page, without histogram suffixes, and whether each is a histogram.
fn documented() -> &'static BTreeMap<String, bool> {
    static NAMES: OnceLock<BTreeMap<String, bool>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let page = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
        let rows = page.lines().filter_map(|line| line.strip_prefix("- `"));
        let names = rows.flat_map(|row| {
            let (names, _) = row.split_once(": ").unwrap_or_default();
            let is_histogram = names.ends_with("(histogram)");
            let names = names.split('`').step_by(2);
            let names = names.filter_map(|it| it.split('{').next());
            names
                .map(|name| (name.to_owned(), is_histogram))
                .collect::<Vec<_>>()
        });
        names.collect()
    })
}

fn is_documented(name: &str) -> bool {
    let of_histogram = || {
        let endings = ["_bucket", "_sum", "_count"];
        let name = endings.iter().find_map(|ending| name.strip_suffix(ending));
        name.and_then(|name| documented().get(name)) == Some(&true)
    };
    documented().contains_key(name) || of_histogram()
}

/// Fails if a process exports a metric that is not on the page.
pub(crate) fn check(samples: &Samples) -> Result<()> {
    match samples.sample_names().find(|name| !is_documented(name)) {
        Some(name) => bail!("{name} is not in {PAGE}; rewrite it with {UPDATE}=1"),
        None => Ok(()),
    }
}

/// Words of a text that look like metrics, and whether each is only a prefix (followed by `_`, `…` or `*`).
fn named(text: &str) -> BTreeSet<(String, bool)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(['p', 'c', 'l', 'r']) {
        let is_inside =
            text[..at].ends_with(|c: char| is_part(c) || c == '$' || c == '-' || c == '/');
        let rest = &text[at..];
        let programs = ["producer_", "consumer_", "limiter_", "revalidator_"];
        if is_inside || !programs.iter().any(|program| rest.starts_with(program)) {
            continue;
        }
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let is_beginning = rest[..end].ends_with('_') || rest[end..].starts_with(['…', '*']);
        // A generated Python module of the protocol; a field of NATS.
        if !rest[..end].contains("_pb2") && &rest[..end] != "consumer_count" {
            found.insert((rest[..end].to_owned(), is_beginning));
        }
    }
    found
}

/// Documentation, dashboards, alerts and the status page.
fn texts() -> Result<Vec<PathBuf>> {
    let mut found = files_under(["docs", "deploy"])?;
    let more = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "docker-compose.yml",
        "runtime/src/admin/programs.js",
    ]
    .map(|name| root().join(name));
    found.extend(more);
    Ok(found)
}

fn files_under<const N: usize>(dirs: [&str; N]) -> Result<Vec<PathBuf>> {
    let mut dirs = dirs.map(|name| root().join(name)).to_vec();
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[test]
fn metrics_named_in_texts_exist() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    for path in texts()? {
        // Binary files name no metrics.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for (name, is_beginning) in named(&text) {
            // Some label values look like metrics.
            let is_value = page.contains(&format!("`{name}`"));
            let begins = || documented().keys().any(|known| known.starts_with(&name));
            ensure!(
                is_documented(&name) || is_value || (is_beginning && begins()),
                "{} names {name}, which is not a metric",
                path.display()
            );
        }
    }
    Ok(())
}

/// Sources that read a metric by name would count a missing metric as 0.
#[test]
fn metrics_named_in_sources_exist() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let ours = [
        "bench", "consumer", "demo", "producer", "runtime", "testkit", "trials",
    ];
    for path in files_under(ours)? {
        // This file contains names that do not exist.
        if path.extension().is_none_or(|it| it != "rs")
            || path.ends_with("metrics_page/references.rs")
        {
            continue;
        }
        let source = fs::read_to_string(&path)?;
        let literals = source.split('"').skip(1);
        let first = literals.filter_map(|it| it.split(['{', ' ']).next());
        // Groups match prefixes of names.
        let has_groups = path.ends_with("tools/metrics_page/notes.rs");
        let begins = |name: &String| documented().keys().any(|known| known.starts_with(name));
        for (name, is_beginning) in first.flat_map(named) {
            ensure!(
                is_beginning
                    || is_documented(&name)
                    || page.contains(&format!("`{name}`"))
                    || has_groups && begins(&name),
                "{} names {name}, which is not a metric",
                path.display()
            );
        }
    }
    Ok(())
}

#[test]
fn metric_names_are_found_in_a_text() {
    let text =
        "`producer_a_total{x=\"consumer_b\"}` /etc/producer_c $producer_d producer_e_… producer_f*";
    let found: Vec<_> = named(text).into_iter().collect();
    let expected = [
        ("consumer_b", false),
        ("producer_a_total", false),
        ("producer_e_", true),
        ("producer_f", true),
    ];
    assert_eq!(
        found,
        expected.map(|(name, begins)| (name.to_owned(), begins))
    );
}
