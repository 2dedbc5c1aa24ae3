//! `peers` counts every cookie exactly, with each system that is installed.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use launcher::{
    programs::{BIN_DIR_VARIABLE, installed},
    tools::skip,
};
use serde_json::Value;

const PEERS: &str = env!("CARGO_BIN_EXE_peers");

/// Maximum of cookies of a step: 1 s at this rate.
const RATE: u64 = 2_000;

/// The directory with the programs of the product.
fn bin_dir() -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/debug");
    std::env::var_os(BIN_DIR_VARIABLE).map_or_else(|| PathBuf::from(built), PathBuf::from)
}

/// Runs `peers` with one system and a low rate, and returns its steps; nothing when the system is not installed.
fn steps(peer: &str, more: &[&str]) -> Result<Vec<Value>> {
    let program = match peer {
        "ours" => Some(bin_dir().join("bench")).filter(|path| path.is_file()),
        "nats" => installed("nats-server"),
        _ => installed("redis-server"),
    };
    if program.is_none() {
        skip(format_args!("the program of {peer} is not there"));
        return Ok(Vec::new());
    }
    let mut command = Command::new(PEERS);
    command.env(BIN_DIR_VARIABLE, bin_dir());
    command.args(["--peers", peer, "--subscribers", "2", "--json"]);
    command
        .args(["-d", "1s", "-l", &RATE.to_string()])
        .args(more);
    let ended = command.output()?;
    let words = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}: {words}", ended.status);
    let report: Value = serde_json::from_slice(&ended.stdout)?;
    Ok(report["steps"].as_array().context("no steps")?.clone())
}

/// Fails unless every subscriber got everything once.
fn check(peer: &str) -> Result<()> {
    let steps = steps(peer, &["--batch", "1,100", "--stopped-for", "0s"])?;
    for step in &steps {
        let count = |name: &str| step[name].as_u64().unwrap_or(u64::MAX);
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
        assert!(count("server_peak_bytes") > 0, "{step}");
    }
    let batches: Vec<_> = steps.iter().map(|step| step["batch"].as_u64()).collect();
    assert!(batches.is_empty() || batches == [Some(1), Some(100)]);
    Ok(())
}

#[test]
fn ours_delivers_all_of_a_low_rate() -> Result<()> {
    check("ours")
}

#[test]
fn nats_delivers_all_of_a_low_rate() -> Result<()> {
    check("nats")
}

#[test]
fn redis_pubsub_delivers_all_of_a_low_rate() -> Result<()> {
    check("redis-pubsub")
}

#[test]
fn redis_streams_deliver_all_of_a_low_rate() -> Result<()> {
    check("redis-streams")
}

#[test]
fn a_stopped_subscriber_of_ours_gets_everything_late() -> Result<()> {
    let flags = [
        "--batch",
        "100",
        "--stopped-for",
        "1s",
        "--stopped-rate",
        "2000",
    ];
    let steps = steps("ours", &flags)?;
    let Some(step) = steps.last() else {
        return Ok(());
    };
    for none in ["lost", "told_lost", "disconnects"] {
        assert_eq!(step[none], 0, "{none} in {step}");
        assert_eq!(step["stopped"][none], 0, "{none} in {step}");
    }
    // 2 s before, 1 s stopped, 3 s after.
    let published = step["published"].as_u64().context("no count")?;
    assert!((1..=6 * RATE).contains(&published), "{step}");
    Ok(())
}
