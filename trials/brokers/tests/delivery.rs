//! Tests that `brokers` counts every cookie exactly, with each installed broker.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use launcher::{
    programs::{BIN_DIR_VARIABLE, installed},
    tools::skip,
};
use serde_json::Value;

const BROKERS: &str = env!("CARGO_BIN_EXE_brokers");

/// Maximum cookies of a step: one second at this rate.
const RATE: u64 = 2_000;

/// Directory with the programs of the product.
fn bin_dir() -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/debug");
    std::env::var_os(BIN_DIR_VARIABLE).map_or_else(|| PathBuf::from(built), PathBuf::from)
}

/// Runs `brokers` with one system at a low rate and returns its steps; no step if the system is not installed.
fn steps(broker: &str, more: &[&str]) -> Result<Vec<Value>> {
    let program = match broker {
        "cookiesync" => Some(bin_dir().join("bench")).filter(|path| path.is_file()),
        "nats" => installed("nats-server"),
        _ => installed("redis-server"),
    };
    if program.is_none() {
        skip(format_args!("{broker} is not installed"));
        return Ok(Vec::new());
    }
    let mut command = Command::new(BROKERS);
    command.env(BIN_DIR_VARIABLE, bin_dir());
    command.args(["--brokers", broker, "--subscribers", "2", "--json"]);
    command
        .args(["-d", "1s", "-l", &RATE.to_string()])
        .args(more);
    let ended = command.output()?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {stderr}", ended.status);
    let report: Value = serde_json::from_slice(&ended.stdout)?;
    Ok(report["steps"].as_array().context("no steps")?.clone())
}

/// Fails unless every subscriber received every cookie exactly once.
fn check(broker: &str) -> Result<()> {
    let steps = steps(broker, &["--batch", "1,100", "--stopped-for", "0s"])?;
    for step in &steps {
        let count = |name: &str| step[name].as_u64().unwrap_or(u64::MAX);
        assert!((1..=RATE).contains(&count("published")), "{step}");
        assert_eq!(count("delivered"), 2 * count("published"), "{step}");
        for none in [
            "lost",
            "surplus",
            "reported_lost",
            "repeated",
            "unreadable",
            "disconnects",
        ] {
            assert_eq!(count(none), 0, "{none} in {step}");
        }
        assert!(count("server_peak_bytes") > 0, "{step}");
    }
    let batches: Vec<_> = steps.iter().map(|step| step["batch"].as_u64()).collect();
    assert!(batches.is_empty() || batches == [Some(1), Some(100)]);
    Ok(())
}

#[test]
fn producer_delivers_all_cookies_at_a_low_rate() -> Result<()> {
    check("cookiesync")
}

#[test]
fn nats_delivers_all_cookies_at_a_low_rate() -> Result<()> {
    check("nats")
}

#[test]
fn redis_pubsub_delivers_all_cookies_at_a_low_rate() -> Result<()> {
    check("redis-pubsub")
}

#[test]
fn redis_streams_deliver_all_cookies_at_a_low_rate() -> Result<()> {
    check("redis-streams")
}

#[test]
fn stopped_subscriber_of_the_producer_receives_all_cookies_later() -> Result<()> {
    let flags = [
        "--batch",
        "100",
        "--stopped-for",
        "1s",
        "--stopped-rate",
        "2000",
    ];
    let steps = steps("cookiesync", &flags)?;
    let Some(step) = steps.last() else {
        return Ok(());
    };
    for none in ["lost", "reported_lost", "disconnects"] {
        assert_eq!(step[none], 0, "{none} in {step}");
        assert_eq!(step["stopped"][none], 0, "{none} in {step}");
    }
    // 2 s before, 1 s stopped, 3 s after.
    let published = step["published"].as_u64().context("no count")?;
    assert!((1..=6 * RATE).contains(&published), "{step}");
    Ok(())
}
