//! Tests of tokens: who has access to the streams, and how a token is replaced while streams are open.

use anyhow::{Result, ensure};
use runtime::connect::credentials::SecurityArgs;
use serde_json::json;
use tempfile::TempDir;
use testkit::admin;

use super::{Stream, TOKEN, wait_counted, wait_logged_times, write};
use crate::{
    deletions::{delete, start_producer, wait_done},
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
    process_wrapper::producer_at,
};

const NEW_TOKEN: &str = "the-token-after-that";

fn with(token_file: &str) -> SecurityArgs {
    SecurityArgs {
        token_file: token_file.to_owned(),
        ..SecurityArgs::default()
    }
}

/// Waits until the producer has reloaded its tokens this many times.
async fn wait_reloaded(producer: &Producer, times: u64) -> Result<()> {
    let reloads = "producer_file_reloads_total";
    wait_counted(producer, reloads, ("outcome", "done"), times).await
}

/// Deletes a user, and waits until the node has confirmed it.
async fn check_deletion(api: &str, user: &str) -> Result<()> {
    let deletion = delete(api, &format!("/v1/users/{user}")).await?;
    wait_done(api, &deletion).await
}

#[tokio::test]
async fn token_grants_access_and_is_rotated_without_a_rejection() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path();
    let tokens = write(path, "tokens", TOKEN)?;
    let (producer, api) = start_producer(&dir, &["--token-file", &tokens]).await?;
    Stream::expect_rejected(&producer, false, SecurityArgs::default(), "missing token").await?;
    let own = write(path, "own", TOKEN)?;
    let new = write(path, "new", NEW_TOKEN)?;
    Stream::expect_rejected(&producer, false, with(&new), "invalid token").await?;
    let rejections = "producer_token_refusals_total";
    wait_counted(&producer, rejections, ("reason", "missing"), 1).await?;
    wait_counted(&producer, rejections, ("reason", "invalid"), 1).await?;
    let mut stream = Stream::open(&producer, "early", false, with(&own)).await?;
    let flags = ["--token-file", &own];
    let store = embedded(&path.join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &flags).await?;
    check_deletion(&api, "before").await?;

    // Rotation: the producer accepts both tokens, the consumer switches, then the old token is removed.
    write(path, "tokens", &format!("{TOKEN}\n{NEW_TOKEN}\n"))?;
    wait_reloaded(&producer, 1).await?;
    Stream::open(&producer, "late", false, with(&own)).await?;
    Stream::open(&producer, "late", false, with(&new)).await?;
    check_deletion(&api, "during").await?;
    write(path, "own", NEW_TOKEN)?;
    wait_until(TIMEOUT, "the consumer has reloaded its token", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count("consumer_file_reloads_total", &[]) == 1)
    })
    .await?;
    write(path, "tokens", NEW_TOKEN)?;
    wait_reloaded(&producer, 2).await?;
    let old = write(path, "old", TOKEN)?;
    Stream::expect_rejected(&producer, false, with(&old), "invalid token").await?;

    producer.accept("alice", 17, "a-1").await?;
    assert_eq!(stream.read().await?, "alice");
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    // On the stream that was opened with the old token.
    check_deletion(&api, "alice").await?;
    consumer.wait_ready_with_state("accepted").await?;
    wait_counted(&producer, rejections, ("reason", "invalid"), 2).await?;
    consumer.wait_ready().await?;
    let logs = producer.process.last_lines(usize::MAX) + &consumer.process.last_lines(usize::MAX);
    ensure!(!logs.contains(TOKEN) && !logs.contains(NEW_TOKEN), "{logs}");
    ensure!(logs.contains("calls rejected"), "{logs}");
    Ok(())
}

#[tokio::test]
async fn consumer_whose_confirmations_fail_reports_it_until_they_succeed() -> Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path();
    let tokens = write(path, "tokens", TOKEN)?;
    let (producer, api) = start_producer(&dir, &["--token-file", &tokens]).await?;
    let own = write(path, "own", TOKEN)?;
    let flags = ["--token-file", &own];
    let store = embedded(&path.join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &flags).await?;
    check_deletion(&api, "before").await?;

    // The consumer's token is removed too early.
    write(path, "tokens", NEW_TOKEN)?;
    wait_reloaded(&producer, 1).await?;
    let deletion = delete(&api, "/v1/users/alice").await?;
    assert_eq!(deletion["at_risk"], true, "{deletion}");
    consumer.wait_not_ready("invalid token").await?;
    let failing = async || {
        let metrics = consumer.metrics().await?;
        anyhow::Ok(metrics.count("consumer_confirmations_failing", &[]))
    };
    assert_eq!(failing().await?, 1);
    let log = || consumer.process.last_lines(usize::MAX);
    wait_logged_times(log, "failed to confirm stored records, retrying", 1).await?;

    write(path, "own", NEW_TOKEN)?;
    wait_done(&api, &deletion).await?;
    consumer.wait_ready_with_state("accepted").await?;
    assert_eq!(failing().await?, 0);
    wait_logged_times(log, "stored records confirmed again", 1).await?;
    wait_logged_times(log, "failed to confirm stored records, retrying", 1).await
}

#[tokio::test]
async fn insecure_address_is_named_in_the_log_and_by_readyz_and_loopback_is_not() -> Result<()> {
    const EXPOSED: &str = "--grpc-insecure: streams are unencrypted and open to any client";
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let log = producer.process.last_lines(usize::MAX);
    for exposed in ["unencrypted", "open to any"] {
        ensure!(!log.contains(exposed), "{log}");
    }
    let exposed = producer_at([0, 0, 0, 0].into(), &dir).await?;
    wait_logged_times(|| exposed.process.last_lines(usize::MAX), EXPOSED, 1).await?;
    let readiness = admin::get(&exposed.admin, "/readyz").await?;
    ensure!(readiness.body.contains(EXPOSED), "{readiness:?}");
    Ok(())
}
