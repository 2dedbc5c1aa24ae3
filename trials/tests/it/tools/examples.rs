//! The programs in `examples/`, unchanged, with real producers, a real consumer and a real `mongod`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use bench::{mongod::Mongod, scrape::names};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, expect_exit, numbered_cookie, wait_until,
        within_timeout,
    },
    stream::python_client,
};

fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .join(file)
}

/// Waits until the reader `example` has opened a stream of this producer.
async fn wait_stream(producer: &Producer) -> Result<()> {
    wait_until(TIMEOUT, "the example opens a stream", async || {
        let labels = [("subscriber", "example"), ("call", "get_cookies")];
        Ok(producer.metrics().await?.count(names::STREAMS, &labels) == 1)
    })
    .await
}

#[tokio::test]
async fn python_example_reads_two_producers_and_reconnects_after_a_restart() -> Result<()> {
    let python = python_client::python().await?;
    let dirs = [TempDir::new()?, TempDir::new()?];
    let mut first = Producer::start(&dirs[0], &[]).await?;
    let second = Producer::start(&dirs[1], &[]).await?;
    let mut reader = Command::new(python)
        .arg(example("python/read_cookies.py"))
        .args(["--name", "example"])
        .args([&first, &second].map(|producer| producer.grpc.trim_start_matches("http://")))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines =
        BufReader::new(reader.stdout.take().context("the reader has no stdout")?).lines();
    wait_stream(&first).await?;
    wait_stream(&second).await?;
    first.accept_numbers(1..=100).await?;
    second.accept_numbers(101..=200).await?;
    let status = first.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&first.process, status, 0)?;
    first.process.restart()?;
    first.wait_ready().await?;
    wait_stream(&first).await?;
    first.accept_numbers(201..=300).await?;

    let mut missing: BTreeSet<_> = (1..=300).map(numbered_cookie).collect();
    while !missing.is_empty() {
        let what = format!("{} more cookies are printed", missing.len());
        let line = within_timeout(&what, lines.next_line()).await??;
        let cookie: Value = serde_json::from_str(&line.context("the reader has ended")?)?;
        let text = |key: &str| cookie[key].as_str().unwrap_or_default().to_owned();
        let dsp_id = cookie["dsp_id"].as_u64().context("dsp_id is missing")?;
        missing.remove(&(text("user_id"), u32::try_from(dsp_id)?, text("buyer_uid")));
    }
    Ok(())
}

#[tokio::test]
async fn bidder_example_finds_buyer_uids_in_mongodb_and_by_lookup() -> Result<()> {
    let python = python_client::python().await?;
    let dir = TempDir::new()?;
    let mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    producer.accept("alice", 17, "a-17").await?;
    producer.accept("alice", 42, "a-42").await?;
    consumer
        .wait_lookup("alice", json!({"17": "a-17", "42": "a-42"}))
        .await?;
    for store in [mongod.uri(), format!("http://{}", consumer.admin)] {
        for (user, known) in [
            ("alice", json!({"17": "a-17", "42": "a-42"})),
            ("bob", json!({})),
        ] {
            let lookup = Command::new(&python)
                .arg(example("python/bidder.py"))
                .args(["--timeout", "10", user, &store, "17", "42", "99"])
                .stdin(Stdio::null())
                .output();
            let output = within_timeout("the bidder exits", lookup).await??;
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(
                output.status.success(),
                "{store}: {}:\n{errors}",
                output.status
            );
            assert_eq!(serde_json::from_slice::<Value>(&output.stdout)?, known);
        }
    }
    Ok(())
}
