//! `trials peers` counts every cookie exactly, with each system that is installed.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use bench::{programs::BIN_DIR_VARIABLE, tools::skip};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::harness::{TRIALS, bin_dir, run_to_end};

/// Two starts of RabbitMQ on a busy machine, each of which `trials` gives up after 60 s.
const STARTS_PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Most cookies of a step: 1 s at this rate.
const RATE: u64 = 2_000;

/// Runs `trials peers` with one system, two subscribers and a low rate, and gives its JSON object.
async fn trials_peers(peer: &str, more: &[&str]) -> Result<Value> {
    let rate = RATE.to_string();
    let mut args = vec!["peers", "--peers", peer, "--subscribers", "2", "--json"];
    args.extend(["-d", "1s", "-l", &rate, "--seed", "7"]);
    args.extend(more);
    let mut command = tokio::process::Command::new(TRIALS);
    command.env(BIN_DIR_VARIABLE, bin_dir().await?);
    command.args(&args).kill_on_drop(true);
    let ended = timeout(STARTS_PATIENCE, command.output()).await??;
    let words = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {words}", ended.status);
    Ok(serde_json::from_slice(&ended.stdout)?)
}

/// Fails unless every subscriber got everything once; a system that is not installed must say so.
async fn check(peer: &str) -> Result<()> {
    let flags = ["--batch", "1,100", "--stopped-for", "0s", "--no-report"];
    let outcome = trials_peers(peer, &flags).await?;
    assert_eq!(outcome["faults"], Value::Array(Vec::new()));
    if let Some(why) = outcome["peers"][0]["skipped"].as_str() {
        let expected = if cfg!(feature = "peers") {
            why.ends_with("is not on the PATH")
        } else {
            why.ends_with("--features trials/peers")
        };
        assert!(expected, "{why}");
        assert_eq!(outcome["steps"], Value::Array(Vec::new()));
        if cfg!(feature = "peers") {
            skip(why);
        }
        return Ok(());
    }
    let steps = outcome["steps"].as_array().context("no steps")?;
    let batches: Vec<_> = steps.iter().map(|step| step["batch"].as_u64()).collect();
    assert_eq!(batches, [Some(1), Some(100)]);
    for step in steps {
        let count = |name: &str| step[name].as_u64().unwrap_or(u64::MAX);
        // What a busy machine makes late is given up.
        assert!((1..=RATE).contains(&count("published")), "{step}");
        assert_eq!(count("delivered"), 2 * count("published"), "{step}");
        for none in [
            "lost",
            "surplus",
            "told_lost",
            "repeated",
            "unreadable",
            "disconnects",
        ] {
            assert_eq!(count(none), 0, "{none} in {step}");
        }
        assert!(count("broker_peak_bytes") > 0, "{step}");
    }
    let version = outcome["peers"][0]["version"].as_str();
    assert!(
        version.is_some_and(|version| !version.is_empty()),
        "{outcome}"
    );
    Ok(())
}

#[tokio::test]
async fn ours_delivers_all_of_a_low_rate() -> Result<()> {
    check("ours").await
}

#[tokio::test]
async fn nats_delivers_all_of_a_low_rate() -> Result<()> {
    check("nats").await
}

#[tokio::test]
async fn redis_pubsub_delivers_all_of_a_low_rate() -> Result<()> {
    check("redis-pubsub").await
}

#[tokio::test]
async fn redis_streams_deliver_all_of_a_low_rate() -> Result<()> {
    check("redis-streams").await
}

#[tokio::test]
async fn rabbitmq_delivers_all_of_a_low_rate() -> Result<()> {
    check("rabbitmq").await
}

#[tokio::test]
async fn a_stopped_subscriber_of_ours_gets_everything_late() -> Result<()> {
    let folder = TempDir::new()?;
    let report = folder.path().join("report");
    let path = report.display().to_string();
    let flags = [
        "--batch",
        "100",
        "--stopped-for",
        "1s",
        "--stopped-rate",
        "2000",
        "--report",
        &path,
    ];
    let outcome = trials_peers("ours", &flags).await?;
    let stopped = &outcome["stopped"][0];
    // 2 s before, 1 s stopped, 3 s after.
    let published = stopped["published"].as_u64().context("no count")?;
    assert!((1..=6 * RATE).contains(&published), "{stopped}");
    assert_eq!(stopped["delivered"], published, "{stopped}");
    assert_eq!(stopped["was_stopped"], true, "{stopped}");
    for none in ["others_lost", "lost", "told_lost", "disconnects"] {
        assert_eq!(stopped[none], 0, "{none} in {stopped}");
    }
    let written: Value = serde_json::from_slice(&fs::read(report.join("report.json"))?)?;
    let names = written["figures"].as_array().context("no figures")?.iter();
    let names: BTreeSet<_> = names.filter_map(|figure| figure["name"].as_str()).collect();
    assert!(
        names.contains("ours with 2 subscribers, in chunks: deliveries"),
        "{names:?}"
    );
    assert_eq!(written["tables"].as_array().map(Vec::len), Some(3));
    assert_eq!(written["outcome"]["seed"], 7);
    Ok(())
}

#[tokio::test]
async fn a_batch_that_fits_into_no_message_is_refused() -> Result<()> {
    let args = ["peers", "--no-report", "--batch", "1,10001"];
    let ended = run_to_end(Path::new(TRIALS), &args, &[]).await?;
    assert_eq!(ended.code, Some(1), "{}", ended.words);
    assert!(
        ended.words.contains("--batch 10001 is too large"),
        "{}",
        ended.words
    );
    Ok(())
}
