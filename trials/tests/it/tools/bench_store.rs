//! `bench store` measures what it says, and leaves nothing behind.

use std::fs;

use anyhow::{Context, Result, ensure};
use bench::mongod::Mongod;
use mongodb::{
    Client,
    bson::{Document, doc},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Ended, bench, embedded, run_to_end};

const COOKIES: u64 = 6_000;
const WARM_UP: u64 = 1_000;

/// Runs `bench store` with small slices and batches.
async fn bench_store(store: &str, more: &[&str]) -> Result<Ended> {
    let cookies = COOKIES.to_string();
    let mut args = vec!["store", "--store", store, "--cookies", &cookies, "--json"];
    if !more.iter().any(|flag| flag.starts_with("--report")) {
        args.push("--no-report");
    }
    args.extend(["--slice", "2000", "--batch", "500", "--seed", "7"]);
    args.extend(more);
    run_to_end(bench().await?, &args, &[]).await
}

/// Its JSON object; fails unless it ended well.
fn report(ended: &Ended) -> Result<Value> {
    ensure!(ended.code == Some(0), "{:?}: {}", ended.code, ended.words);
    let json = ended.words.lines().last().context("it said nothing")?;
    Ok(serde_json::from_str(json)?)
}

fn way<'a>(report: &'a Value, name: &str) -> Result<&'a Value> {
    let ways = report["ways"].as_array().context("no ways")?;
    let way = ways.iter().find(|way| way["name"] == name);
    way.with_context(|| format!("{name} is missing in {report}"))
}

#[track_caller]
fn check_consumed(report: &Value, way: &Value) {
    assert_eq!(report["faults"], Value::Array(Vec::new()));
    assert_eq!(report["cookies"], COOKIES);
    assert_eq!(way["cookies"], COOKIES);
    assert_eq!(way["wrong"], 0, "{way}");
    assert_eq!(way["slices"].as_array().map(Vec::len), Some(3));
    assert!(way["per_second"].as_f64() > Some(0.0), "{way}");
    assert!(way["batch_micros"]["p50"].as_u64() > Some(0), "{way}");
    let count = |name: &str| way["counts"][name].as_u64().unwrap_or(u64::MAX);
    assert_eq!(count("received"), COOKIES + WARM_UP);
    let others = ["written", "superseded", "suppressed", "stale", "failed"];
    assert_eq!(others.map(count).iter().sum::<u64>(), COOKIES + WARM_UP);
}

#[tokio::test]
async fn a_store_in_mongodb_is_measured_beside_its_baselines() -> Result<()> {
    let folder = TempDir::new()?;
    let mut mongod = Mongod::start(&folder.path().join("mongod")).await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    for foreign in ["7", "bench-store-7", "bench-store-one-x"] {
        let cookies = client.database(foreign).collection("cookies");
        cookies.insert_one(doc! {"_id": "precious"}).await?;
    }
    let before = client.list_database_names().await?;

    let flags = ["--dsps=3", "--repeat=0.5", "--repeat-changed=0.4"];
    let report = report(&bench_store(&mongod.uri(), &flags).await?)?;
    let pairs = report["pairs"].as_u64().context("no pairs")?;
    assert!((3_000..4_000).contains(&pairs), "{pairs}");
    assert!(report["changes"].as_u64() > Some(1_000), "{report}");
    assert_eq!(report["verified_pairs"], pairs);
    check_consumed(&report, way(&report, "one")?);
    for name in ["one", "ceiling", "upserts"] {
        let way = way(&report, name)?;
        assert_eq!(way["documents"], pairs, "{way}");
        assert!(way["mongod_cpu_seconds"].is_object(), "{way}");
    }
    assert!(way(&report, "ceiling")?["cookies"].as_u64() < Some(pairs));
    assert_eq!(way(&report, "upserts")?["wrong"], 0);
    assert_eq!(client.list_database_names().await?, before);
    mongod.process().check()
}

#[tokio::test]
async fn what_was_written_is_kept_on_request() -> Result<()> {
    let folder = TempDir::new()?;
    let mut mongod = Mongod::start(&folder.path().join("mongod")).await?;
    let flags = ["--dsps=1", "--keep", "--expiry=sweep", "--rate=20000"];
    let report = report(&bench_store(&mongod.uri(), &flags).await?)?;
    check_consumed(&report, way(&report, "one")?);
    assert_eq!(way(&report, "one")?["documents"], COOKIES + WARM_UP);
    let client = Client::with_uri_str(mongod.uri()).await?;
    let kept = client.list_database_names().await?;
    for (name, indexes) in [("one", 1), ("ceiling", 2)] {
        let database = format!("bench-store-{name}-1");
        assert!(kept.contains(&database), "{kept:?}");
        let cookies = client.database(&database).collection::<Document>("cookies");
        let names = cookies.list_index_names().await?;
        assert_eq!(names.len(), indexes, "{name}: {names:?}");
        let seconds = way(&report, name)?["seconds"].as_f64();
        assert!(
            seconds >= Some(0.3),
            "{name} had them sooner than at its rate: {seconds:?}"
        );
    }

    let resumed = [
        "--dsps=1",
        "--alone",
        "--resume",
        "--repeat=0.8",
        "--lookups=500",
    ];
    let report = self::report(&bench_store(&mongod.uri(), &resumed).await?)?;
    check_consumed(&report, way(&report, "one")?);
    let pairs = report["pairs"].as_u64();
    assert!(pairs > Some(COOKIES + WARM_UP) && pairs < Some(2 * COOKIES + WARM_UP));
    assert_eq!(way(&report, "one")?["documents"].as_u64(), pairs);
    assert_eq!(report["ways"].as_array().map(Vec::len), Some(1));
    let lookups = &way(&report, "one")?["lookup_micros"];
    assert!(lookups["p99"].as_u64() > Some(0), "{report}");
    mongod.process().check()
}

#[tokio::test]
async fn an_embedded_store_is_measured_in_a_folder_of_its_own() -> Result<()> {
    let folder = TempDir::new()?;
    let path = folder.path().join("store");
    let flags = ["--repeat=0.8", "--repeat-changed=1"];
    let report = report(&bench_store(&embedded(&path), &flags).await?)?;
    check_consumed(&report, way(&report, "embedded")?);
    assert!(!path.exists(), "it is removed");

    fs::create_dir(&path)?;
    fs::write(path.join("precious"), "")?;
    let refused = bench_store(&embedded(&path), &[]).await?;
    assert_eq!(refused.code, Some(1));
    assert!(refused.words.contains("not empty"), "{}", refused.words);
    assert!(path.join("precious").exists());
    Ok(())
}

#[tokio::test]
async fn absent_mongodb_is_told_in_one_line() -> Result<()> {
    let ended = bench_store("mongodb://user:secret@127.0.0.1:1", &[]).await?;
    assert_eq!(ended.code, Some(1));
    let of_error = |line: &&str| !line.starts_with("warning: ");
    let lines: Vec<_> = ended.words.lines().filter(of_error).collect();
    ensure!(lines.len() == 1, "{}", ended.words);
    for word in ["error: ", "127.0.0.1:1", "--store"] {
        ensure!(lines[0].contains(word), "{word}: {}", ended.words);
    }
    ensure!(!ended.words.contains("secret"), "{}", ended.words);
    Ok(())
}

#[tokio::test]
async fn wrong_flags_are_refused_by_name() -> Result<()> {
    for (store, flag, word) in [
        ("none", "--repeat=2", "--repeat"),
        ("none", "--writers=100", "--mongodb-writers"),
        ("none", "--prefix=a.b", "--mongodb-prefix"),
        ("none", "--prefix=", "--prefix"),
        ("none", "--resume", "--resume"),
        ("none", "--lookups=7", "--lookups"),
        ("mangodb://secret@host", "--keep", "--store"),
        ("mongodb://127.0.0.1:1", "--keep", "MongoDB"),
    ] {
        let ended = bench_store(store, &[flag]).await?;
        ensure!(ended.code != Some(0), "{flag}: {}", ended.words);
        assert!(ended.words.contains(word), "{flag}: {}", ended.words);
        assert!(!ended.words.contains("secret"), "{}", ended.words);
    }
    Ok(())
}
