//! Tests that syncs reach the stores of all consumers in normal operation.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use bench::{load, traffic::Traffic};
use serde_json::json;
use tempfile::TempDir;
use testkit::scrape::names;

use super::hostile;
use crate::{
    documents::Documents,
    harness::{Consumer, Producer, TIMEOUT, accept_all, embedded, expected_contents, wait_until},
    mongods::shared,
};

/// Number of users, small enough that most pairs of user and DSP are synced more than once.
const USERS: u64 = 60;
const COOKIES: u64 = 3_000;

#[tokio::test]
async fn sync_can_be_looked_up_on_every_consumer() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let stores = [embedded(&dir.path().join("store")), mongod.uri()];
    let on_disk = Consumer::start(&dir, "embedded", &[&producer], &stores[0], &[]).await?;
    let on_mongodb = Consumer::start(&dir, "mongodb", &[&producer], &stores[1], &[]).await?;

    producer.accept("alice", 17, "a-1").await?;
    producer
        .accept("alice", 4_294_967_295, "%C3%BC%26%3D%2F+%25--")
        .await?;
    producer.accept("bob", 17, "b-1").await?;
    for consumer in [&on_disk, &on_mongodb] {
        let alice = json!({"17": "a-1", "4294967295": "ü&=/+%--"});
        consumer.wait_lookup("alice", alice).await?;
        consumer.wait_lookup("bob", json!({"17": "b-1"})).await?;
    }

    producer.accept("bob", 17, "b-2").await?;
    for consumer in [&on_disk, &on_mongodb] {
        consumer.wait_lookup("bob", json!({"17": "b-2"})).await?;
        let unknown = testkit::admin::get(&consumer.admin, "/v1/users/nobody").await?;
        assert_eq!(unknown.status, 404);
        let error: serde_json::Value = serde_json::from_str(&unknown.body)?;
        assert_eq!(error, json!({"error": "unknown user", "user_id": "nobody"}));
    }
    mongod.process.check()
}

/// Cookies of few users on one connection, whose order determines the newest value.
fn repeating(producer: &Producer, seed: u64) -> Result<load::Plan> {
    Ok(load::Plan {
        traffic: Traffic::new(seed, NonZeroU64::new(USERS)),
        ..producer.ordered_load(seed, 2_000, COOKIES)?
    })
}

#[tokio::test]
async fn embedded_store_has_the_newest_value_of_each_pair_and_nothing_else() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &hostile::contracts()).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;

    let plan = repeating(&producer, 2)?;
    hostile::send_during(&producer, COOKIES, accept_all(&plan)).await?;
    consumer.wait_settled(COOKIES).await?;
    let contents = expected_contents(&plan.traffic, COOKIES);
    let pairs: usize = contents.values().map(BTreeMap::len).sum();
    assert!(pairs < 2_000, "{pairs} pairs are too many for repeats");
    consumer.wait_lookups(&contents).await?;

    let unsent = Traffic::new(3, NonZeroU64::new(USERS));
    let users = (0..500).map(|number| unsent.cookie(0, number).user_id().to_owned());
    consumer.check_unknown(users).await?;
    assert_eq!(
        consumer.metrics().await?.count(names::RECEIVED, &[]),
        COOKIES
    );
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn mongodb_has_the_newest_value_of_each_pair_and_nothing_else() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let producer = Producer::start(&dir, &hostile::contracts()).await?;
    let store = mongod.uri();
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;

    let plan = repeating(&producer, 4)?;
    hostile::send_during(&producer, COOKIES, accept_all(&plan)).await?;
    consumer.wait_settled(COOKIES).await?;
    let contents = expected_contents(&plan.traffic, COOKIES);
    let documents = Documents::connect(&store).await?;
    documents.wait_exactly(&contents).await?;
    consumer.wait_lookups(&contents).await?;
    let expiring = documents.expire_after_seconds().await?;
    ensure!(
        expiring.is_empty(),
        "expiry by sweep must not create an index: {expiring:?}"
    );
    Ok(())
}

#[tokio::test]
async fn late_cookie_does_not_replace_a_newer_one() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let slow = Producer::start(&dir, &[]).await?;
    let quick = Producer::start(&dir, &[]).await?;
    // Accepted first and received last, because the consumers connect to this producer last.
    slow.accept("alice", 17, "old").await?;
    let accepted = Instant::now();
    wait_until(
        TIMEOUT,
        "MongoDB's millisecond clock advances",
        async || Ok(accepted.elapsed() > Duration::from_millis(2)),
    )
    .await?;
    quick.accept("alice", 17, "new").await?;
    quick.accept("bob", 17, "b").await?;
    for (name, store) in [
        ("embedded", embedded(&dir.path().join("store"))),
        ("mongodb", mongod.uri()),
    ] {
        let mut consumer = Consumer::start(&dir, name, &[&quick], &store, &[]).await?;
        consumer.wait_lookup("alice", json!({"17": "new"})).await?;
        consumer.wait_lookup("bob", json!({"17": "b"})).await?;
        // The retry queue must be empty before the consumer is killed.
        consumer.wait_settled(2).await?;
        consumer.process.kill()?;
        let consumer = Consumer::start(&dir, name, &[&slow], &store, &[]).await?;
        consumer.wait_settled(1).await?;
        assert_eq!(consumer.metrics().await?.count(names::STALE, &[]), 1);
        consumer.wait_lookup("alice", json!({"17": "new"})).await?;
    }
    Ok(())
}
