//! Tests that `trials store` measures its variants and removes its data.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    harness::{ProgramOutput, TRIALS, embedded, run_to_end},
    mongods::shared,
};

const COOKIES: u64 = 6_000;
const WARM_UP: u64 = 1_000;

/// Runs `trials store` with small slices and batches.
async fn store(store: &str, more: &[&str]) -> Result<ProgramOutput> {
    let cookies = COOKIES.to_string();
    let mut args = vec!["store", "--store", store, "--cookies", &cookies, "--json"];
    args.extend(["--slice", "2000", "--batch", "500", "--seed", "7"]);
    args.extend(more);
    run_to_end(Path::new(TRIALS), &args, &[]).await
}

/// The JSON report of a successful run.
fn outcome(output: &ProgramOutput) -> Result<Value> {
    ensure!(output.code == Some(0), "{:?}: {}", output.code, output.text);
    let json = output.text.lines().last().context("nothing was printed")?;
    Ok(serde_json::from_str(json)?)
}

fn variant<'a>(outcome: &'a Value, name: &str) -> Result<&'a Value> {
    let variants = outcome["variants"].as_array().context("no variants")?;
    let variant = variants.iter().find(|variant| variant["name"] == name);
    variant.with_context(|| format!("{name} is missing in {outcome}"))
}

#[track_caller]
fn check_consumer(outcome: &Value) {
    assert_eq!(outcome["failures"], Value::Array(Vec::new()));
    assert_eq!(outcome["cookies"], COOKIES);
    let variant = &outcome["variants"][0];
    assert_eq!(variant["name"], "consumer");
    assert_eq!(variant["cookies"], COOKIES);
    assert!(variant["per_second"].as_f64() > Some(0.0), "{variant}");
    assert!(
        variant["batches"]["p99_micros"].as_u64() > Some(0),
        "{variant}"
    );
    let cookies = variant["batches"]["cookies_mean"].as_f64();
    assert!(cookies > Some(0.0), "{variant}");
}

#[tokio::test]
async fn mongodb_store_is_measured_with_its_baselines() -> Result<()> {
    let mut mongod = shared::start().await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    for foreign in ["7", "trials-store"] {
        let cookies = client.database(foreign).collection("cookies");
        cookies.insert_one(doc! {"_id": "precious"}).await?;
    }
    let before = client.list_database_names().await?;

    let flags = ["--dsps=3", "--repeat=0.5", "--repeat-changed=0.4"];
    let outcome = outcome(&store(&mongod.uri(), &flags).await?)?;
    let pairs = outcome["pairs"].as_u64().context("no pairs")?;
    assert!((3_000..4_000).contains(&pairs), "{pairs}");
    check_consumer(&outcome);
    for name in ["consumer", "ceiling", "upserts"] {
        let variant = variant(&outcome, name)?;
        assert_eq!(variant["documents"], pairs, "{variant}");
        assert!(variant["mongod_cpu_micros"].is_number(), "{variant}");
    }
    assert!(variant(&outcome, "ceiling")?["cookies"].as_u64() < Some(pairs));
    assert_eq!(variant(&outcome, "upserts")?["cookies"], COOKIES);
    assert_eq!(client.list_database_names().await?, before);
    mongod.process().check()
}

#[tokio::test]
async fn written_cookies_are_kept_on_request() -> Result<()> {
    let mut mongod = shared::start().await?;
    let flags = [
        "--dsps=1",
        "--keep",
        "--consumer-arg=--expiry=sweep",
        "--rate=20000",
    ];
    let kept = outcome(&store(&mongod.uri(), &flags).await?)?;
    check_consumer(&kept);
    assert_eq!(variant(&kept, "consumer")?["documents"], COOKIES + WARM_UP);
    let client = Client::with_uri_str(mongod.uri()).await?;
    for (name, indexes) in [("consumer", 1), ("ceiling", 2)] {
        let database = client.database(&format!("trials-store-{name}-1"));
        let cookies = database.collection::<Document>("cookies");
        let names = cookies.list_index_names().await?;
        assert_eq!(names.len(), indexes, "{name}: {names:?}");
        let seconds = variant(&kept, name)?["seconds"].as_f64();
        assert!(seconds >= Some(0.3), "{name} was faster: {seconds:?}");
    }

    let flags = [
        "--dsps=1",
        "--no-baseline",
        "--resume",
        "--repeat=0.8",
        "--lookups=500",
        "--pages",
    ];
    let resumed = outcome(&store(&mongod.uri(), &flags).await?)?;
    check_consumer(&resumed);
    let pairs = resumed["pairs"].as_u64();
    assert!(pairs > Some(COOKIES + WARM_UP) && pairs < Some(2 * COOKIES + WARM_UP));
    assert_eq!(variant(&resumed, "consumer")?["documents"].as_u64(), pairs);
    assert_eq!(resumed["variants"].as_array().map(Vec::len), Some(1));
    let lookups = &variant(&resumed, "consumer")?["lookups"];
    for (at, has_pages) in [(0, false), (1, true)] {
        assert!(lookups[at]["p99_micros"].as_u64() > Some(0), "{resumed}");
        assert_eq!(
            lookups[at]["pages"].as_u64() > Some(0),
            has_pages,
            "{resumed}"
        );
    }
    mongod.process().check()
}

#[tokio::test]
async fn embedded_trial_removes_its_directory_and_rejects_an_existing_one() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("store");
    let flags = ["--repeat=0.8", "--repeat-changed=1"];
    check_consumer(&outcome(&store(&embedded(&path), &flags).await?)?);
    assert!(!path.exists(), "the directory was not removed");

    std::fs::create_dir(&path)?;
    let rejected = store(&embedded(&path), &[]).await?;
    assert_eq!(rejected.code, Some(1));
    assert!(rejected.text.contains("exists"), "{}", rejected.text);
    assert!(path.exists());
    Ok(())
}

#[tokio::test]
async fn invalid_flags_are_rejected_by_name() -> Result<()> {
    for (to, flag, word) in [
        ("none", "--repeat=2", "--repeat"),
        (
            "none",
            "--consumer-arg=--mongodb-writers=100",
            "--mongodb-writers",
        ),
        ("none", "--resume", "--resume"),
        ("none", "--lookups=7", "--lookups"),
        ("mangodb://secret@host", "--keep", "--store"),
        ("mongodb://user:secret@127.0.0.1:1", "--keep", "--store"),
    ] {
        let output = store(to, &[flag]).await?;
        ensure!(output.code != Some(0), "{flag}: {}", output.text);
        assert!(output.text.contains(word), "{flag}: {}", output.text);
        assert!(!output.text.contains("secret"), "{}", output.text);
    }
    Ok(())
}
