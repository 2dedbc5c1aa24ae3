//! What a node will not get is on record beside its cursors, whatever becomes of its processes.

use anyhow::{Result, ensure};
use bench::{admin, mongod::Mongod, scrape::names};
use consumer::losses::{Cause, Page};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Consumer, PATIENCE, Producer, embedded, wait_until};

/// More than one MiB of cookies, the least a log can be told to hold.
const MORE_THAN_THE_LOG: u64 = 30_000;

async fn losses(node: &Consumer) -> Result<Page> {
    let answer = admin::get(&node.admin, "/v1/losses").await?;
    ensure!(answer.status == 200, "{}: {}", answer.status, answer.body);
    Ok(serde_json::from_str(&answer.body)?)
}

async fn restart(node: &mut Consumer) -> Result<()> {
    node.process.kill()?;
    node.process.wait(PATIENCE).await?;
    node.process.start_again()?;
    node.wait_ready().await
}

/// Waits until the newest record is of the end of an epoch; returns all.
async fn wait_ended(node: &Consumer) -> Result<Page> {
    wait_until(PATIENCE, "the end is on record", async || {
        let page = losses(node).await?;
        let newest = page.losses.last();
        Ok(newest.is_some_and(|it| matches!(it.loss.cause, Cause::Ended { .. })))
    })
    .await?;
    losses(node).await
}

#[tokio::test]
async fn gaps_and_ends_of_epochs_stay_on_record_when_the_consumer_is_killed() -> Result<()> {
    let folder = TempDir::new()?;
    let mongod = Mongod::start(&folder.path().join("mongod")).await?;
    let mut producer = Producer::start(&folder, &["--log-bytes", "1MiB"]).await?;
    let mut nodes = Vec::new();
    for (name, store) in [
        ("mongodb", mongod.uri()),
        ("embedded", embedded(&folder.path().join("store"))),
    ] {
        nodes.push(Consumer::start(&folder, name, &[&producer], &store, &[]).await?);
    }
    producer.accept("alice", 1, "first").await?;
    for node in &mut nodes {
        node.wait_known("alice", json!({"1": "first"})).await?;
        node.wait_settled(1).await?;
        assert_eq!(losses(node).await?, Page::default());
        node.process.kill()?;
        node.process.wait(PATIENCE).await?;
    }
    producer.accept_load(2, MORE_THAN_THE_LOG).await?;
    for node in &mut nodes {
        node.process.start_again()?;
        node.wait_ready().await?;
        wait_until(PATIENCE, "the rest is stored", async || {
            let metrics = node.metrics().await?;
            let lost = metrics.count(names::LOST, &[]);
            Ok(lost > 0 && metrics.count(names::RECEIVED, &[]) + lost == MORE_THAN_THE_LOG)
        })
        .await?;
        let lost = node.lost().await?;
        node.wait_settled(MORE_THAN_THE_LOG - lost).await?;
        let page = losses(node).await?;
        let [gap] = &page.losses[..] else {
            anyhow::bail!("{page:?}");
        };
        assert_eq!((gap.number, gap.loss.first), (1, 2));
        assert_eq!((gap.loss.cookies, gap.loss.exact), (Some(lost), true));
        assert_eq!(gap.loss.cause, Cause::LogMovedOn);
        restart(node).await?;
        assert_eq!(losses(node).await?, page);
    }
    producer.process.kill()?;
    producer.process.wait(PATIENCE).await?;
    producer.process.start_again()?;
    producer.wait_ready().await?;
    for node in &mut nodes {
        let page = wait_ended(node).await?;
        let end = &page.losses[1];
        assert_eq!((end.number, end.loss.first), (2, MORE_THAN_THE_LOG + 2));
        ensure!(
            end.loss.cookies.is_some(),
            "its record has a bound: {end:?}"
        );
        restart(node).await?;
        assert_eq!(losses(node).await?, page);
    }
    Ok(())
}
