//! Expiry: MongoDB deletes in the window and by its own means, the embedded store shows nothing expired.

use anyhow::Result;
use bench::{admin, mongod::Mongod};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    documents::Documents,
    harness::{Consumer, DRAIN_PATIENCE, PATIENCE, Producer, embedded, expect_exit, wait_until},
};

/// What MongoDB takes at most: 68 years.
const NEVER_SECONDS: i64 = 2_147_483_647;

async fn wait_expiring(documents: &Documents, seconds: i64) -> Result<()> {
    let what = format!("the index expires after {seconds} s");
    wait_until(PATIENCE, &what, async || {
        let found = documents.expire_after_seconds().await?;
        Ok(found.len() == 2 && found.values().all(|found| *found == seconds))
    })
    .await
}

#[tokio::test]
async fn mongodb_expires_cookies_only_while_the_window_is_open() -> Result<()> {
    let folder = TempDir::new()?;
    let often = ["--setParameter", "ttlMonitorSleepSecs=1"];
    let mongod = Mongod::start_with(&folder.path().join("mongod"), &often).await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let producer = Producer::start(&folder, &[]).await?;
    let store = mongod.uri();

    let closed = ["--ttl", "1s", "--expiry-window", "never"];
    let mut consumer = Consumer::start(&folder, "node", &[&producer], &store, &closed).await?;
    producer.accept("alice", 17, "a-1").await?;
    producer.accept("alice", 18, "a-2").await?;
    consumer
        .wait_known("alice", json!({"17": "a-1", "18": "a-2"}))
        .await?;
    wait_expiring(&documents, NEVER_SECONDS).await?;
    let status = consumer.process.stop(DRAIN_PATIENCE).await?;
    expect_exit(&consumer.process, status, 0)?;
    assert_eq!(documents.count().await?, 2);

    let open = ["--ttl", "1s", "--expiry-window", "always"];
    let _consumer = Consumer::start(&folder, "node", &[&producer], &store, &open).await?;
    wait_expiring(&documents, 1).await?;
    wait_until(PATIENCE, "the cookies are gone", async || {
        Ok(documents.count().await? == 0)
    })
    .await
}

#[tokio::test]
async fn embedded_store_shows_no_cookie_older_than_its_time_to_live() -> Result<()> {
    let folder = TempDir::new()?;
    let producer = Producer::start(&folder, &[]).await?;
    let [long, short] = ["long", "short"].map(|name| embedded(&folder.path().join(name)));
    let keeps = Consumer::start(&folder, "long", &[&producer], &long, &[]).await?;
    let forgets = Consumer::start(&folder, "short", &[&producer], &short, &["--ttl", "1s"]).await?;
    producer.accept("alice", 17, "a-1").await?;
    keeps.wait_settled(1).await?;
    forgets.wait_settled(1).await?;
    wait_until(PATIENCE, "its time is over", async || {
        let answer = admin::get(&forgets.admin, "/v1/users/alice").await?;
        Ok(answer.status == 404)
    })
    .await?;
    keeps.wait_known("alice", json!({"17": "a-1"})).await
}
