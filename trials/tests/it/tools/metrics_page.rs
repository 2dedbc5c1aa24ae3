//! Test that generates `docs/metrics.md` from the metrics that all programs register.
//!
//! The programs run here with every setting that registers metrics. Each system test also scrapes its processes at its end and
//! rejects undocumented metrics, which finds metrics that are registered only under other conditions.

mod notes;
mod references;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use metric_defs::{Kind, MetricDef};
use runtime::{
    metrics::{MetricDescription, Registry},
    settings,
};
use tempfile::TempDir;

use self::notes::{GROUPS, Group, LABELS, NOTES};
pub(crate) use self::references::check;
use crate::{
    edge::security::certificates::{Authority, write},
    harness::{TIMEOUT, wait_until},
    stream_client::CookieStream,
};

const PAGE: &str = "docs/metrics.md";

/// If set, the test rewrites the page instead of comparing it.
const UPDATE: &str = "UPDATE_DOCS";

const HEAD: &str = "\
# Metrics

This page is for operators: it lists the Prometheus metrics at `/metrics` of the [admin ports](operation.md#monitoring).
The [glossary](glossary.md) defines terms such as *cookie*.

Metrics whose names end in `_total` are counters, which start at 0 with the process. Histograms are marked. All others are
gauges. Equations hold in every scrape. Each term stands for a metric of the same group: `delivered`, for example, is
`producer_subscriber_delivered_cookies_total`.
";

/// Sections of the page, by directory of the sources that register the metrics.
const SECTIONS: &[(&str, &str)] = &[
    ("producer/", "Producer"),
    ("consumer/", "Consumer"),
    ("limits/", "Limiter"),
    ("revalidator/", "Revalidator"),
    ("runtime/", "All programs"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All metrics that the programs register, each once.
async fn described() -> Result<Vec<MetricDescription>> {
    let dir = TempDir::new()?;
    let files = files(&dir)?;
    let path = dir.path().display();
    let producer = |more: &[String]| {
        let ports = ["--http", "--grpc", "--admin"].map(|port| format!("{port}=127.0.0.1:0"));
        let args = [
            vec!["producer".to_owned(), "--state=/nonexistent".to_owned()],
            ports.to_vec(),
        ];
        let args = args.into_iter().flatten().chain(more.iter().cloned());
        producer::config::Config::load(args.map(Into::into))
    };
    let consumer = |more: &[String]| {
        let args = ["consumer", "--admin=127.0.0.1:0", "--name=node"];
        let args = args
            .map(ToOwned::to_owned)
            .into_iter()
            .chain(more.iter().cloned());
        let letters = format!("--dead-letters={path}/letters");
        let store = format!("--store=embedded:{path}/store");
        consumer::Config::load(args.chain([letters, store]).map(Into::into))
    };
    let open = producer::app::App::start(producer(&[])?).await?;
    let secure = producer::app::App::start(producer(&files.of_producer)?).await?;
    let (plain, safe) = (open.addresses.grpc, secure.addresses.grpc);
    let reads = [format!("--producer=http://{plain},https://{safe}")];
    let registry = Registry::new();
    let archive = ["--archive=nats://127.0.0.1:1/COOKIES".to_owned()];
    let args = [&reads[..], &files.of_consumer[..], &archive[..]].concat();
    let reader = consumer::app::App::start(consumer(&args)?, registry.clone()).await?;
    let _stream = CookieStream::open(&format!("http://{plain}"), "host").await?;
    let limits = Registry::new();
    let limiter = limiter::serve::app::App::start(limiter(&path)?, limits.clone()).await?;
    let checks = Registry::new();
    let revalidator = revalidator::program::Program::start(revalidator_config()?, &checks)?;
    wait_until(TIMEOUT, "the consumer reads from both", async || {
        let all = registry.descriptions();
        let read = all
            .iter()
            .find(|it| it.def.name == "consumer_producer_connected");
        Ok(read.is_some_and(|it| it.labels["producer"].len() == 2))
    })
    .await?;
    let mut all: Vec<MetricDescription> = Vec::new();
    for registry in [
        &secure.services.registry,
        &open.services.registry,
        &registry,
        &limits,
        &checks,
    ] {
        for it in registry.descriptions() {
            match all.iter_mut().find(|known| known.def.name == it.def.name) {
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
    revalidator.drain().await;
    Ok(all)
}

/// Settings of a revalidator without a NATS server.
fn revalidator_config() -> Result<revalidator::config::Config> {
    let apps = root().join("examples/revalidator.toml");
    let args = [
        "revalidator".to_owned(),
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        "--nats=nats://127.0.0.1:1".to_owned(),
        format!("--apps={}", apps.display()),
    ];
    let loaded = settings::load::<revalidator::config::Args>(args.map(Into::into))?;
    Ok(loaded.config)
}

/// Settings of a limiter in this directory that register all its metrics.
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

/// Flags that name files.
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
    let mut of_producer = flags("--tls-client-ca", "producer")?;
    let (certificate, key) = authority.write_identity(path, "http")?;
    of_producer.push(format!("--http-tls-cert={certificate}"));
    of_producer.push(format!("--http-tls-key={key}"));
    let contracts = root().join("examples/contracts.toml");
    of_producer.push(format!("--contracts={}", contracts.display()));
    let tokens = write(path, "api-tokens", "partner a-token-that-is-good * write\n")?;
    of_producer.push("--api=127.0.0.1:0".to_owned());
    of_producer.push(format!("--api-tokens={tokens}"));
    let mut of_consumer = flags("--tls-ca", "consumer")?;
    let (certificate, key) = authority.write_identity(path, "lookup")?;
    // Another address than that of the admin port, because both ports are 0.
    of_consumer.push("--lookup=127.0.0.2:0".to_owned());
    of_consumer.push(format!("--lookup-token-file={token}"));
    of_consumer.push(format!("--lookup-tls-cert={certificate}"));
    of_consumer.push(format!("--lookup-tls-key={key}"));
    Ok(Files {
        of_producer,
        of_consumer,
    })
}

/// The complete page.
fn page(all: &[MetricDescription]) -> Result<String> {
    for (name, _) in NOTES {
        ensure!(
            all.iter().any(|it| it.def.name == *name),
            "a note on {name}, which is not a metric"
        );
    }
    if let Some(it) = all.iter().find(|it| group_of(it).is_none()) {
        bail!("no group for {it:?}");
    }
    let mut page = HEAD.to_owned();
    let labels = LABELS.iter().filter(|it| it.metric.is_empty());
    let labels: Vec<_> = labels
        .map(|it| format!("`{}` ({})", it.label, it.values))
        .collect();
    writeln!(page, "\nCommon labels: {}.", labels.join("; "))?;
    for (dir, section) in SECTIONS {
        writeln!(page, "\n## {section}")?;
        for (index, Group { title, .. }) in GROUPS.iter().enumerate() {
            let is_known = |it: &Group| it.title == *title && it.file.starts_with(dir);
            if !is_known(&GROUPS[index]) || GROUPS[..index].iter().any(is_known) {
                continue;
            }
            let is_in = |it: &&MetricDescription| group_of(it).is_some_and(is_known);
            let rows = rows(all.iter().filter(is_in))?;
            write!(page, "\n### {title}\n\n{rows}")?;
        }
    }
    Ok(page)
}

/// The first matching group.
fn group_of(it: &MetricDescription) -> Option<&'static Group> {
    GROUPS
        .iter()
        .find(|group| it.file.contains(group.file) && it.def.name.starts_with(group.prefix))
}

/// Metrics that differ only in the name of the process or port.
struct Row<'a> {
    names: Vec<String>,
    first: &'a MetricDescription,
    labels: BTreeMap<&'static str, BTreeSet<String>>,
}

/// A list of the metrics, preceded by the labels that several of them share.
fn rows<'a>(group: impl Iterator<Item = &'a MetricDescription>) -> Result<String> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for it in group {
        ensure!(
            it.def.name.ends_with("_total") == (it.def.kind == Kind::Counter),
            "{}: only names of counters end in _total",
            it.def.name
        );
        let labels: Vec<_> = it.labels.keys().copied().collect();
        let labels = match &labels[..] {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        let name = format!("`{}{labels}`", it.def.name);
        let is_same = |row: &&mut Row<'_>| {
            let first = row.first.def;
            first.help == it.def.help && first.kind == it.def.kind
        };
        match rows.iter_mut().find(is_same) {
            Some(row) => {
                row.names.push(name);
                for (label, values) in &it.labels {
                    let known = row.labels.entry(*label).or_default();
                    known.extend(values.iter().cloned());
                }
            }
            None => rows.push(Row {
                names: vec![name],
                first: it,
                labels: it.labels.clone(),
            }),
        }
    }
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for row in &rows {
        for values in label_values(row)? {
            *uses.entry(values).or_default() += 1;
        }
    }
    let mut text = String::new();
    let shared: Vec<_> = uses.iter().filter(|(_, rows)| **rows > 1).collect();
    for (values, _) in &shared {
        writeln!(text, "{values}.\n")?;
    }
    for row in &rows {
        let MetricDef {
            name, help, kind, ..
        } = row.first.def;
        let kind = match kind {
            Kind::Histogram(_) => " (histogram)",
            Kind::Counter | Kind::Gauge => "",
        };
        let names = row.names.join(", ");
        write!(text, "- {names}{kind}: {help}")?;
        if !note(name).is_empty() {
            write!(text, " {}", note(name))?;
        }
        for values in label_values(row)? {
            if uses[&values] == 1 {
                write!(text, " {values}.")?;
            }
        }
        text.push('\n');
    }
    Ok(text)
}

/// The note on a metric, or an empty text.
fn note(name: &str) -> &'static str {
    let note = NOTES.iter().find(|(of, _)| *of == name);
    note.map_or("", |(_, note)| note)
}

/// The values of each label that neither the common labels nor the description of the metric name.
fn label_values(row: &Row<'_>) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (label, values) in &row.labels {
        let name = row.first.def.name;
        let known = LABELS
            .iter()
            .find(|it| it.label == *label && (it.metric.is_empty() || it.metric == name));
        let note = note(name);
        let described = format!("{} {note}", row.first.def.help);
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let described: BTreeSet<_> = described.split(|c: char| !is_word(c)).collect();
        match known {
            Some(it) if it.metric.is_empty() || it.values.is_empty() => {}
            Some(it) => found.push(format!("`{label}`: {}", it.values)),
            None if values
                .iter()
                .all(|value| described.contains(value.as_str())) => {}
            None => {
                ensure!(!values.is_empty(), "{name}: label {label} has no values");
                let values: Vec<_> = values.iter().map(|value| format!("`{value}`")).collect();
                found.push(format!("`{label}`: {}", values.join(", ")));
            }
        }
    }
    Ok(found)
}

#[tokio::test]
async fn metrics_page_is_up_to_date() -> Result<()> {
    let page = page(&Box::pin(described()).await?)?;
    let path = root().join(PAGE);
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, page)?;
        return Ok(());
    }
    let found = fs::read_to_string(&path).context(PAGE)?;
    let outdated = page
        .lines()
        .zip(found.lines())
        .find(|(new, old)| new != old);
    ensure!(
        page == found,
        "{PAGE} is outdated: {outdated:?}; rewrite it with {UPDATE}=1"
    );
    Ok(())
}
