//! Tests of a consumer that reads everything from the archive, with a real NATS server.

use anyhow::{Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use testkit::nats;

use crate::{
    archive::{archive_url, create_stream, stream_config, wait_archived},
    deletions::{delete, start_producer},
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, numbered_contents, wait_until,
    },
};

/// Waits until a consumer of the archive has all cookies.
async fn check_following(consumer: &Consumer, last: u64) -> Result<()> {
    consumer.wait_lookups(&numbered_contents(1..=last)).await?;
    let metrics = consumer.metrics().await?;
    let lost = metrics.count("consumer_uncertain_loss_cookies_total", &[]);
    ensure!(consumer.lost().await? + lost == 0, "{lost}");
    let behind = "consumer_archive_newest_message_age_seconds";
    wait_until(TIMEOUT, "the archive is read up to its end", async || {
        let behind = consumer.metrics().await?.sum(behind, &[]);
        Ok(behind.is_some_and(|behind| behind < 5.0))
    })
    .await
}

#[tokio::test]
async fn node_without_producers_follows_the_archive_and_changes_modes() -> Result<()> {
    let dir = TempDir::new()?;
    let mut nats = nats::start(dir.path()).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    let archive = archive_url(&nats);
    let follow = ["--archive", &archive, "--archive-mode", "follow"];
    let (mut producer, api) = start_producer(&dir, &follow[..2]).await?;
    // Not read: a new node begins at the end.
    producer.accept("early", 7, "x").await?;
    ensure!(wait_archived(&producer).await? == 1);
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[], &store, &follow).await?;
    consumer.wait_ready_with_state("current; following").await?;
    producer.accept("alice", 7, "a").await?;
    producer.accept_numbers(1..=500).await?;
    check_following(&consumer, 500).await?;
    consumer
        .check_unknown(["early".to_owned()].into_iter())
        .await?;
    consumer.wait_lookup("alice", json!({"7": "a"})).await?;

    consumer.process.kill()?;
    producer.accept_numbers(501..=1_000).await?;
    delete(&api, "/v1/users/alice").await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    check_following(&consumer, 1_000).await?;
    consumer
        .check_unknown(["alice".to_owned()].into_iter())
        .await?;
    producer.accept("alice", 7, "again").await?;
    consumer.wait_lookup("alice", json!({"7": "again"})).await?;

    nats.kill()?;
    consumer.wait_not_ready("archive").await?;
    producer.accept_numbers(1_001..=1_500).await?;
    nats.restart().await?;
    consumer.wait_ready().await?;
    check_following(&consumer, 1_500).await?;

    // Its end is exact, because it was idle.
    wait_archived(&producer).await?;
    producer.process.kill()?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    producer.accept_numbers(1_501..=2_000).await?;
    check_following(&consumer, 2_000).await?;

    let change =
        async |consumer: &mut Consumer, numbers, producers: &[&Producer], flags: &[&str]| {
            consumer.process.drain(DRAIN_TIMEOUT).await?;
            producer.accept_numbers(numbers).await?;
            *consumer = Consumer::start(&dir, "node", producers, &store, flags).await?;
            consumer.wait_settled(500).await?;
            ensure!(consumer.lost().await? == 0);
            Ok(())
        };
    change(&mut consumer, 2_001..=2_500, &[&producer], &[]).await?;
    change(&mut consumer, 2_501..=3_000, &[], &follow).await?;
    check_following(&consumer, 3_000).await?;
    consumer.wait_settled(500).await
}
