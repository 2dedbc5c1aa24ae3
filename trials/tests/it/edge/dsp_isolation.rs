//! Tests that a failing DSP database or a flood of fake DSPs affects no other DSP. The consumer reports and bounds
//! both, and loses no cookies.

use proto::units::{DspId, UnixMicros};
use std::{cell::Cell, ops::RangeInclusive, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use consumer::{
    batch::Batch,
    deletions::Deletions,
    store::{
        Backlog as _, Expiry, Upkeep as _,
        mongodb::{MongodbStore, Options},
    },
    ttl::Ttls,
};
use mongodb::{
    Client,
    bson::{Document, doc},
};
use runtime::unix_micros;
use serde_json::json;
use tempfile::TempDir;
use testkit::{admin, mongod, programs::ServerProcess, scrape::names};
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
    mongods::{command, create_root, shared, start_failable},
};

const FAILING: &str = "consumer_dsp_failing";

/// Waits until the retry queue has exactly `cookies` cookies.
async fn wait_retry_queue(consumer: &Consumer, cookies: u64) -> Result<()> {
    wait_retry_queue_within(consumer, cookies..=cookies).await
}

async fn wait_retry_queue_within(consumer: &Consumer, cookies: RangeInclusive<u64>) -> Result<()> {
    let what = format!("{cookies:?} cookies are in the retry queue");
    let last = Cell::new(0);
    let waited = wait_until(TIMEOUT, &what, async || {
        last.set(
            consumer
                .metrics()
                .await?
                .count(names::RETRY_QUEUE_COOKIES, &[]),
        );
        Ok(cookies.contains(&last.get()))
    });
    waited
        .await
        .with_context(|| format!("{} cookies at the deadline", last.get()))
}

/// Whether the consumer's metrics report this DSP as failing.
async fn is_failing(consumer: &Consumer, dsp: &str) -> Result<bool> {
    let metrics = consumer.metrics().await?;
    Ok(metrics.sum(FAILING, &[("dsp", dsp)]) == Some(1.0))
}

#[tokio::test]
async fn dsp_without_permission_is_reported_and_stored_once_it_is_granted() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = mongod::start_with(&dir.path().join("mongod"), &["--auth"]).await?;
    create_root(&mongod.uri(), "boss", "boss-secret").await?;
    let boss = format!("mongodb://boss:boss-secret@{}/", mongod.address);
    let permissions = |dbs: &[&str]| -> Vec<Document> {
        let roles = dbs.iter();
        roles
            .map(|db| doc! { "role": "readWrite", "db": *db })
            .collect()
    };
    let roles = permissions(&["cookiesync", "17"]);
    let user = doc! { "createUser": "exchange", "pwd": "secret", "roles": roles };
    command(&boss, user).await?;
    let store = format!(
        "mongodb://exchange:secret@{}/?authSource=admin",
        mongod.address
    );
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;

    producer.accept("alice", 999, "kept").await?;
    producer.accept("alice", 17, "a-17").await?;
    consumer
        .wait_ready_with_state("retry queue: 999 (error 13 (Unauthorized): not authorized on")
        .await?;
    wait_retry_queue(&consumer, 1).await?;
    for number in 0..20 {
        producer
            .accept(&format!("user-{number}"), 17, "flows")
            .await?;
    }
    producer.accept("bob", 999, "kept-too").await?;
    consumer
        .wait_lookup("user-19", json!({"17": "flows"}))
        .await?;
    wait_retry_queue(&consumer, 2).await?;
    ensure!(is_failing(&consumer, "999").await?);

    consumer.process.kill()?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    // Cookies that were just stored may still be in the queue.
    let recovered = consumer
        .metrics()
        .await?
        .count(names::RETRY_QUEUE_RECOVERED, &[]);
    ensure!(recovered >= 2, "{recovered} recovered");
    consumer
        .wait_ready_with_state("retry queue: 999 (error 13 (Unauthorized): not authorized on")
        .await?;
    let roles = permissions(&["cookiesync", "17", "999"]);
    command(&boss, doc! { "updateUser": "exchange", "roles": roles }).await?;
    consumer
        .wait_lookup("bob", json!({"999": "kept-too"}))
        .await?;
    consumer
        .wait_lookup("alice", json!({"17": "a-17", "999": "kept"}))
        .await?;
    wait_retry_queue(&consumer, 0).await?;
    consumer.wait_ready_with_state("all available").await?;
    ensure!(!is_failing(&consumer, "999").await?);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn retry_queue_survives_a_killed_mongod_and_consumer() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let view = doc! { "create": "cookies", "viewOn": "others", "pipeline": [] };
    client.database("55").run_command(view).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    for number in 0..2_500 {
        producer
            .accept(&format!("user-{number}"), 55, "waits")
            .await?;
    }
    wait_retry_queue(&consumer, 2_500).await?;
    mongod.kill()?;
    producer.accept("late", 55, "after-the-kill").await?;
    consumer.process.kill()?;
    mongod.restart().await?;
    // An entry of another consumer, which must stay.
    let queue = client.database("cookiesync").collection("retry_queue");
    let now = i64::try_from(unix_micros())?;
    queue
        .insert_one(doc! { "_id": { "c": "other", "n": now }, "dsp": 55_i64 })
        .await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    // Cookies that no cursor covered when the server was killed are redelivered and queued a second time.
    wait_retry_queue_within(&consumer, 2_501..=2 * 2_501).await?;
    let recovered = consumer
        .metrics()
        .await?
        .count(names::RETRY_QUEUE_RECOVERED, &[]);
    assert_eq!(recovered, 2_500);
    let drop_view = doc! { "drop": "cookies" };
    client.database("55").run_command(drop_view).await?;
    let late = json!({"55": "after-the-kill"});
    consumer.wait_lookup("late", late).await?;
    wait_retry_queue(&consumer, 0).await?;
    let stored = client.database("55").collection::<Document>("cookies");
    assert_eq!(stored.count_documents(doc! {}).await?, 2_501);
    assert_eq!(queue.count_documents(doc! {}).await?, 1);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn dsp_with_a_hanging_or_conflicting_database_delays_no_other_dsp() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let view = doc! { "create": "cookies", "viewOn": "others", "pipeline": [] };
    client.database("55").run_command(view).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    for dsp_id in [17, 44, 55] {
        producer.accept("alice", dsp_id, "first").await?;
    }
    consumer
        .wait_lookup("alice", json!({"17": "first", "44": "first"}))
        .await?;
    consumer.wait_ready_with_state("retry queue: 55 (").await?;

    let hang = doc! {
        "configureFailPoint": "failCommand",
        "mode": "alwaysOn",
        "data": {
            "failCommands": ["insert", "update", "find"],
            "namespace": "44.cookies",
            "blockConnection": true,
            "blockTimeMS": 20_000,
        },
    };
    command(&mongod.uri(), hang).await?;
    producer.accept("bob", 44, "late").await?;
    producer.accept("bob", 17, "now").await?;
    consumer.wait_ready_with_state("44 (no response ").await?;
    for number in 0..20 {
        let user = format!("user-{number}");
        producer.accept(&user, 17, "flows").await?;
        producer.accept(&user, 44, "waits").await?;
    }
    // A lookup returns the available buyer uids and names the unavailable DSPs.
    let partial = r#""buyer_uids":{"17":"flows"},"unavailable":[44]"#;
    wait_until(
        TIMEOUT,
        "buyer uids of other DSPs are returned",
        async || {
            let answer = admin::get(&consumer.admin, "/v1/users/user-19").await?;
            Ok(answer.status == 200 && answer.body.contains(partial))
        },
    )
    .await?;

    let off = doc! { "configureFailPoint": "failCommand", "mode": "off" };
    command(&mongod.uri(), off).await?;
    client
        .database("55")
        .run_command(doc! { "drop": "cookies" })
        .await?;
    consumer
        .wait_lookup("user-19", json!({"17": "flows", "44": "waits"}))
        .await?;
    let all = json!({"17": "first", "44": "first", "55": "first"});
    consumer.wait_lookup("alice", all).await?;
    consumer.wait_ready_with_state("all available").await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn slow_collection_creation_delays_no_other_dsp() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = start_failable(&dir).await?;
    let hang = doc! {
        "configureFailPoint": "failCommand",
        "mode": "alwaysOn",
        "data": {
            "failCommands": ["create"],
            "namespace": "44.cookies",
            "blockConnection": true,
            "blockTimeMS": 20_000,
        },
    };
    let before = command(&mongod.uri(), hang).await?.get_i32("count")?;
    let store = store_in(&mongod);
    let nothing = || Arc::new(Batch::new(1, 1));
    let uri = mongod.uri();
    let mut hangs = store.retry(DspId(44), nothing());
    let is_reached = doc! {
        "waitForFailPoint": "failCommand",
        "timesEntered": before + 1,
        "maxTimeMS": 20_000,
    };
    tokio::select! {
        created = &mut hangs => bail!("the creation does not hang: {created:?}"),
        reached = command(&uri, is_reached) => reached?,
    };
    let stop = CancellationToken::new();
    let expiry = async {
        let now = UnixMicros(unix_micros());
        let expiry = Expiry {
            open: true,
            now,
            since: now,
            time_left: None,
            stop: &stop,
            deletions: &Deletions::default(),
            report: &|_| {},
        };
        store.expire(expiry).await?;
        std::future::pending::<Result<()>>().await
    };
    tokio::select! {
        biased;
        created = &mut hangs => bail!("the other DSP was delayed: {created:?}"),
        failed = expiry => failed?,
        created = store.retry(DspId(45), nothing()) => drop(created?),
    }
    ensure!(store.has_slot(DspId(45)) && !store.has_slot(DspId(44)));
    Ok(())
}

#[tokio::test]
async fn fake_dsps_get_at_most_the_configured_slots() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let flags = ["--dsps", "17", "--unlisted-dsps-max", "20"];
    for store in [mongod.uri(), embedded(dir.path())] {
        let producer = Producer::start(&dir, &[]).await?;
        let name = store.split(':').next().unwrap_or_default().to_owned();
        let mut consumer = Consumer::start(&dir, &name, &[&producer], &store, &flags).await?;
        for dsp_id in 1_001..=1_100 {
            producer.accept("mallory", dsp_id, "made-up").await?;
        }
        producer.accept("alice", 17, "real").await?;
        consumer.wait_lookup("alice", json!({"17": "real"})).await?;
        let no_slot = [("reason", "no_dsp_slot")];
        wait_until(TIMEOUT, "80 cookies are rejected", async || {
            let metrics = consumer.metrics().await?;
            Ok(metrics.count(names::FAILED, &no_slot) == 80)
        })
        .await?;
        wait_retry_queue(&consumer, 0).await?;
        // DSPs keep their slots across a restart, and no other DSP gets one.
        consumer.process.kill()?;
        consumer.process.restart()?;
        consumer.wait_ready().await?;
        producer.accept("bob", 1_001, "has-a-slot").await?;
        producer.accept("bob", 1_100, "has-none").await?;
        consumer
            .wait_lookup("bob", json!({"1001": "has-a-slot"}))
            .await?;
        let metrics = consumer.metrics().await?;
        assert_eq!(metrics.count("consumer_dsp_slots", &[]), 20);
        assert_eq!(consumer.lost().await?, 0);
    }
    let client = Client::with_uri_str(mongod.uri()).await?;
    let databases = client.list_database_names().await?;
    let dsps = databases.iter().filter(|name| name.parse::<u32>().is_ok());
    assert_eq!(dsps.count(), 21, "{databases:?}");
    Ok(())
}

#[tokio::test]
async fn queued_cookies_of_a_rejected_dsp_become_dead_letters() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let client = Client::with_uri_str(mongod.uri()).await?;
    let view = doc! { "create": "cookies", "viewOn": "others", "pipeline": [] };
    client.database("19").run_command(view).await?;
    let (file, letters) = (dir.path().join("consumer.toml"), dir.path().join("letters"));
    std::fs::write(&file, "")?;
    let config = format!("--config={}", file.display());
    let flags = [&*config, "--dead-letters", &letters.display().to_string()];
    let producer = Producer::start(&dir, &[]).await?;
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    producer.accept("alice", 19, "waits").await?;
    producer.accept("alice", 17, "flows").await?;
    wait_retry_queue(&consumer, 1).await?;
    wait_until(TIMEOUT, "the failing DSP is reported", async || {
        let failing = [("dsp", "19")];
        Ok(consumer.metrics().await?.count(FAILING, &failing) == 1)
    })
    .await?;
    std::fs::write(&file, "rejected_dsps = ['19']\n")?;
    wait_retry_queue(&consumer, 0).await?;
    consumer.wait_ready_with_state("all available").await?;
    consumer
        .wait_lookup("alice", json!({"17": "flows"}))
        .await?;
    let letters = std::fs::read_to_string(&letters)?;
    ensure!(
        letters.contains("waits") && letters.contains("the cookie's DSP is rejected"),
        "{letters}"
    );
    Ok(())
}

fn store_in(mongod: &ServerProcess) -> MongodbStore {
    MongodbStore::new(Options {
        uri: mongod.uri(),
        name: "node".to_owned(),
        prefix: String::new(),
        ttls: Ttls::new(Duration::from_secs(86_400), [].into()),
    })
}

#[tokio::test]
async fn rejected_dsp_frees_its_slot_without_a_restart() -> Result<()> {
    let dir = TempDir::new()?;
    let file = dir.path().join("consumer.toml");
    std::fs::write(&file, "unlisted_dsps_max = 1\n")?;
    let config = format!("--config={}", file.display());
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(dir.path());
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[&config]).await?;
    producer.accept("mallory", 1_001, "made-up").await?;
    producer.accept("alice", 17, "has-none").await?;
    let wait_rejected = async |count| {
        wait_until(TIMEOUT, "a cookie is rejected", async || {
            let metrics = consumer.metrics().await?;
            Ok(metrics.count(names::FAILED, &[("reason", "no_dsp_slot")]) == count)
        })
        .await
    };
    wait_rejected(1).await?;
    std::fs::write(&file, "unlisted_dsps_max = 1\nrejected_dsps = ['1001']\n")?;
    wait_until(TIMEOUT, "the configuration is reloaded", async || {
        let done = [("outcome", "done")];
        let metrics = consumer.metrics().await?;
        Ok(metrics.count("consumer_config_reloads_total", &done) == 1)
    })
    .await?;
    producer.accept("alice", 17, "real").await?;
    consumer.wait_lookup("alice", json!({"17": "real"})).await?;
    producer.accept("mallory", 1_001, "again").await?;
    wait_rejected(2).await
}
