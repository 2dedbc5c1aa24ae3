//! `docs/metrics.md` is written from what all programs register, and whatever names a metric names one of those.
//!
//! The programs are started here with every setting that registers something. What they would register in yet another
//! case shows elsewhere: every process that a test starts is scraped at its end, and may only tell what is documented.

mod words;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context, Result, bail, ensure};
use bench::scrape::Samples;
use runtime::metrics::{MetricDescription, Registry};
use tempfile::TempDir;

use self::words::{GROUPS, LABELS, NOTES};
use crate::{
    edge::security::certificates::{Authority, write},
    harness::{TIMEOUT, wait_until},
    stream_client::CookieStream,
};

const PAGE: &str = "docs/metrics.md";

/// Set, it rewrites the page instead of comparing it.
const UPDATE: &str = "UPDATE_DOCS";

const HEAD: &str = "\
# Metrics

What `/metrics` on the admin ports of the producer (9090), the consumer (9091) and the limiter (9098) tells, as Prometheus reads
it. This page is generated from the code: do not edit it. After a change of metrics, or of what is said of them in
`trials/tests/it/tools/metrics_page/words.rs`, run

```sh
UPDATE_DOCS=1 cargo test --test it metrics_page
```

A metric whose labels have fixed values shows each of them from the start, with 0; one with a label that can be anything
shows a series when there is something to be told. Counters begin at 0 when a process starts. Names are
`<process>_<noun>_<unit>`, `_total` for what only grows, in seconds, bytes and cookies; `…_max` is the greatest value since the
scrape before the last, for what fills and empties between two scrapes.
";

/// The programs' sections, by what the names of their metrics begin with.
const SECTIONS: &[(&str, &str)] = &[
    ("producer_", "Producer"),
    ("consumer_", "Consumer"),
    ("limiter_", "Limiter"),
    ("process_", "All"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All that the programs register, each once.
async fn described() -> Result<Vec<MetricDescription>> {
    let dir = TempDir::new()?;
    let files = files(&dir)?;
    let path = dir.path().display();
    let producer = |more: &[String]| {
        let ports = ["--http", "--grpc", "--admin"].map(|port| format!("{port}=127.0.0.1:0"));
        let args = [
            vec!["producer".to_owned(), "--state=none".to_owned()],
            ports.to_vec(),
        ];
        let args = args.into_iter().flatten().chain(more.iter().cloned());
        producer::config::Config::load(args.map(Into::into))
    };
    let consumer = |more: &[String]| {
        let args = [
            "consumer",
            "--admin=127.0.0.1:0",
            "--name=node",
            "--store=none",
        ];
        let args = args
            .map(ToOwned::to_owned)
            .into_iter()
            .chain(more.iter().cloned());
        let letters = format!("--dead-letters={path}/letters");
        consumer::Config::load(args.chain([letters]).map(Into::into))
    };
    let open = producer::app::App::start(producer(&[])?).await?;
    let secure = producer::app::App::start(producer(&files.of_producer)?).await?;
    let (plain, safe) = (open.addresses().grpc, secure.addresses().grpc);
    let reads = [format!("--producer=http://{plain},https://{safe}")];
    let registry = Registry::new();
    let args = [&reads[..], &files.of_consumer[..]].concat();
    let reader = consumer::app::App::start(consumer(&args)?, registry.clone()).await?;
    let _stream = CookieStream::open(&format!("http://{plain}"), "host").await?;
    let limits = Registry::new();
    let limiter = limiter::serve::app::App::start(limiter(&path)?, limits.clone()).await?;
    wait_until(TIMEOUT, "the consumer reads from both", async || {
        let all = registry.described()?;
        let read = all
            .iter()
            .find(|it| it.name == "consumer_producer_connected");
        Ok(read.is_some_and(|it| it.labels["producer"].len() == 2))
    })
    .await?;
    let mut all: Vec<MetricDescription> = Vec::new();
    for registry in [secure.registry(), open.registry(), &registry, &limits] {
        for it in registry.described()? {
            match all.iter_mut().find(|known| known.name == it.name) {
                Some(known) => {
                    for (label, values) in it.labels {
                        known.labels.entry(label).or_default().extend(values);
                    }
                }
                None => all.push(it),
            }
        }
    }
    reader.stop_at_once().await;
    limiter.drain().await?;
    Ok(all)
}

/// The settings of a limiter in this directory, with all that registers something.
fn limiter(dir: &impl std::fmt::Display) -> Result<limiter::serve::config::Config> {
    let limits = root().join("examples/limits.toml");
    let tokens = format!("{dir}/tokens");
    fs::write(&tokens, "name a-token-that-is-good *\n")?;
    let args = [
        "limiter".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        format!("--limits={}", limits.display()),
        format!("--state={dir}/limiter-state"),
        format!("--token-file={tokens}"),
    ];
    Ok(limiter::serve::config::Config::load(args.map(Into::into))?)
}

/// Settings that name files.
struct Files {
    of_producer: Vec<String>,
    of_consumer: Vec<String>,
}

fn files(dir: &TempDir) -> Result<Files> {
    let path = dir.path();
    let authority = Authority::new("the authority")?;
    let trusted = authority.write(path, "authority.pem")?;
    let token = write(path, "token", "a-token-that-is-good\n")?;
    let flags = |authorities: &str, name: &str| {
        let (certificate, key) = authority.write_identity(path, name)?;
        anyhow::Ok(vec![
            format!("{authorities}={trusted}"),
            format!("--tls-cert={certificate}"),
            format!("--tls-key={key}"),
            format!("--token-file={token}"),
        ])
    };
    let limits = root().join("examples/producer-limits.toml");
    let mut of_producer = flags("--tls-client-ca", "producer")?;
    of_producer.push(format!("--limits={}", limits.display()));
    Ok(Files {
        of_producer,
        of_consumer: flags("--tls-ca", "consumer")?,
    })
}

/// The whole page.
fn page(all: &[MetricDescription]) -> Result<String> {
    for (name, _) in NOTES {
        ensure!(
            all.iter().any(|it| it.name == *name),
            "a note on {name}, which is none"
        );
    }
    let mut page = HEAD.to_owned();
    let mut written = 0;
    for (prefix, section) in SECTIONS {
        writeln!(page, "\n## {section}")?;
        for (index, group) in GROUPS.iter().enumerate() {
            let is_in = |it: &&MetricDescription| {
                it.name.starts_with(prefix) && group_of(it) == Some(index)
            };
            let group_metrics: Vec<_> = all.iter().filter(is_in).collect();
            if group_metrics.is_empty() {
                continue;
            }
            written += group_metrics.len();
            writeln!(page, "\n### {}\n", group.title)?;
            writeln!(
                page,
                "| metric | type | labels | tells |\n|---|---|---|---|"
            )?;
            for it in group_metrics {
                writeln!(page, "{}", row(it)?)?;
            }
        }
    }
    if written < all.len() {
        let is_left = |it: &&MetricDescription| group_of(it).is_none();
        bail!("no group for {:?}", all.iter().find(is_left));
    }
    Ok(page)
}

/// The first group that takes it.
fn group_of(it: &MetricDescription) -> Option<usize> {
    GROUPS
        .iter()
        .position(|group| it.file.contains(group.file) && it.name.starts_with(group.prefix))
}

fn row(it: &MetricDescription) -> Result<String> {
    let MetricDescription {
        name, help, kind, ..
    } = it;
    let labels = it.labels.iter().map(|(label, values)| {
        let values = values_of(name, label, values)?;
        Ok(format!("`{label}`: {values}"))
    });
    let labels = labels.collect::<Result<Vec<_>>>()?.join("<br>");
    let note = NOTES.iter().find(|(of, _)| of == name);
    let note = note.map_or(String::new(), |(_, note)| format!(" *{note}*"));
    Ok(format!("| `{name}` | {kind} | {labels} | {help}{note} |").replace("  ", " "))
}

/// The values of a label in words, or else all there are.
fn values_of(metric: &str, label: &str, values: &BTreeSet<String>) -> Result<String> {
    let words = LABELS
        .iter()
        .find(|it| it.label == label && (it.metric.is_empty() || it.metric == metric));
    if let Some(words) = words {
        return Ok(words.values.to_owned());
    }
    ensure!(!values.is_empty(), "{metric}: no value of {label} was seen");
    let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
    Ok(values.join(", "))
}

#[tokio::test]
async fn page_of_metrics_is_what_the_programs_register() -> Result<()> {
    let page = page(&described().await?)?;
    let path = root().join(PAGE);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, page)?;
        return Ok(());
    }
    let found = fs::read_to_string(&path).context(PAGE)?;
    let stale = page
        .lines()
        .zip(found.lines())
        .find(|(new, old)| new != old);
    ensure!(
        page == found,
        "{PAGE} is stale: {stale:?}; write it anew with {UPDATE}=1"
    );
    Ok(())
}

/// What the page names, without the endings that a histogram's samples have.
fn documented() -> &'static BTreeMap<String, bool> {
    static NAMES: OnceLock<BTreeMap<String, bool>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let page = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let names = rows.filter_map(|row| {
            let (name, rest) = row.split_once("` | ")?;
            Some((name.to_owned(), rest.starts_with("histogram")))
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

/// Fails when a process tells something that the page does not.
pub(crate) fn check(samples: &Samples) -> Result<()> {
    match samples.sample_names().find(|name| !is_documented(name)) {
        Some(name) => bail!("{name} is not in {PAGE}: write that anew with {UPDATE}=1"),
        None => Ok(()),
    }
}

/// What in a text looks like a metric: where it is followed by `_`, `…` or `*`, the beginning of one.
fn named(text: &str) -> BTreeSet<(String, bool)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices(['p', 'c', 'l']) {
        let is_inside =
            text[..at].ends_with(|c: char| is_part(c) || c == '$' || c == '-' || c == '/');
        let rest = &text[at..];
        let programs = ["producer_", "consumer_", "limiter_"];
        if is_inside || !programs.iter().any(|program| rest.starts_with(program)) {
            continue;
        }
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let is_beginning = rest[..end].ends_with('_') || rest[end..].starts_with(['…', '*']);
        // A module that Python has of a contract.
        if !rest[..end].contains("_pb2") {
            found.insert((rest[..end].to_owned(), is_beginning));
        }
    }
    found
}

/// Texts for people and for their tools.
fn texts() -> Result<Vec<PathBuf>> {
    let mut found = files_under(["docs", "deploy"])?;
    let more = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "docker-compose.yml",
        "runtime/src/admin/page.js",
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
fn metric_that_a_text_names_exists() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    for path in texts()? {
        // What is not text names nothing.
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        for (name, is_beginning) in named(&text) {
            // Some values of labels begin like a metric.
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

/// What a source reads by its name alone must be there to be read: what is missing would count as nothing.
#[test]
fn metric_that_a_source_names_exists() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE))?;
    let ours = [
        "bench", "consumer", "demo", "launcher", "producer", "runtime", "trials",
    ];
    for path in files_under(ours)? {
        // This file has some that are none.
        if path.extension().is_none_or(|it| it != "rs") || path.ends_with("tools/metrics_page.rs") {
            continue;
        }
        let source = fs::read_to_string(&path)?;
        let literals = source.split('"').skip(1);
        let first = literals.filter_map(|it| it.split(['{', ' ']).next());
        // Groups of the page go by how names begin.
        let has_groups = path.ends_with("tools/metrics_page/words.rs");
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
fn names_are_found_in_a_text() {
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
