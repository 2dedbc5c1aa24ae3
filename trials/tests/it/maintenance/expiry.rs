//! Tests of expiry and compaction windows in MongoDB, and of expiry in the embedded store.

use std::time::Duration;

use anyhow::{Result, ensure};
use mongodb::bson::{Bson, DateTime, Document, doc};
use serde_json::json;
use tempfile::TempDir;
use testkit::admin;

use crate::{
    documents::Documents,
    harness::{Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, expect_exit, wait_until},
    maintenance::{ConsumerOptions, DAY, MaintenanceRun, SHORT_DSP, Server, TTL},
    mongods::shared,
};

#[tokio::test]
async fn mongodb_expires_cookies_only_while_the_window_is_open() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = mongod.uri();
    let flags = |window| ["--ttl", "3s", "--expiry-window", window];
    let closed = flags("never");
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &closed).await?;
    producer.accept("alice", 17, "a-1").await?;
    producer.accept("alice", 18, "a-2").await?;
    consumer
        .wait_lookup("alice", json!({"17": "a-1", "18": "a-2"}))
        .await?;
    let indexes = documents.expire_after_seconds().await?;
    ensure!(indexes.is_empty(), "{indexes:?}");
    wait_until(TIMEOUT, "the cookies expire", async || {
        let answer = admin::get(&consumer.admin, "/v1/users/alice").await?;
        Ok(answer.status == 404)
    })
    .await?;
    let status = consumer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&consumer.process, status, 0)?;
    assert_eq!(documents.count().await?, 2);

    let open = flags("always");
    let _consumer = Consumer::start(&dir, "node", &[&producer], &store, &open).await?;
    wait_until(TIMEOUT, "the cookies are deleted", async || {
        Ok(documents.count().await? == 0)
    })
    .await
}

#[tokio::test]
async fn embedded_store_hides_cookies_that_expire_by_their_contract() -> Result<()> {
    let dir = TempDir::new()?;
    let contracts = dir.path().join("contracts.toml");
    std::fs::write(&contracts, "[dsp.17]\nttl = '1s'\n[dsp.18]\nttl = '1d'\n")?;
    let contracts = format!("--contracts={}", contracts.display());
    let producer = Producer::start(&dir, &[&contracts]).await?;
    let [long, short] = ["long", "short"].map(|name| embedded(&dir.path().join(name)));
    let long_ttl = Consumer::start(&dir, "long", &[&producer], &long, &[]).await?;
    let floor = ["--ttl-floor", "1s"];
    let short_ttl = Consumer::start(&dir, "short", &[&producer], &short, &floor).await?;
    producer.accept("alice", 17, "a-1").await?;
    producer.accept("alice", 18, "a-2").await?;
    long_ttl.wait_settled(2).await?;
    short_ttl.wait_settled(2).await?;
    short_ttl.wait_lookup("alice", json!({"18": "a-2"})).await?;
    for (consumer, dsps) in [(&long_ttl, 0), (&short_ttl, 2)] {
        let metrics = consumer.metrics().await?;
        assert_eq!(metrics.count("consumer_contract_ttl_dsps", &[]), dsps);
        assert_eq!(metrics.count("consumer_unknown_events_total", &[]), 0);
    }
    let both = json!({"17": "a-1", "18": "a-2"});
    long_ttl.wait_lookup("alice", both).await
}

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn documents_expire_only_in_the_window_and_by_the_ttl_of_their_dsp() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let short = SHORT_DSP.to_string();
    let write_old = async |name: &str| -> Result<()> {
        server.write("17.cookies", name, TTL + HOUR).await?;
        server.write(&short, name, DAY + HOUR).await
    };
    write_old("old").await?;
    server.write("17.cookies", "fresh", TTL - HOUR).await?;
    server.write(&short, "fresh", DAY - HOUR).await?;
    let options = doc! { "expireAfterSeconds": 60 };
    server
        .create_index("foreign.cookies", "t_1", options)
        .await?;

    let maintenance = MaintenanceRun::start(&mongod, "10T00:30")?;
    let check_foreign = async |name: &str| -> Result<()> {
        server.write("foreign.cookies", name, HOUR).await?;
        server.wait_names("foreign.cookies", &[]).await
    };
    check_foreign("before").await?;
    assert_eq!(server.names("17.cookies").await?, ["fresh", "old"]);
    assert_eq!(server.names(&short).await?, ["fresh", "old"]);

    maintenance.set("10T01:00");
    server.wait_names("17.cookies", &["fresh"]).await?;
    server.wait_names(&short, &["fresh"]).await?;
    check_foreign("inside").await?;

    maintenance.set("10T03:00");
    maintenance.wait_open(false).await?;
    write_old("old").await?;
    check_foreign("after").await?;
    assert_eq!(server.names("17.cookies").await?, ["fresh", "old"]);
    assert_eq!(server.names(&short).await?, ["fresh", "old"]);
    wait_until(TIMEOUT, "the deletions are counted", async || {
        Ok(maintenance.metrics.expired.get() == 2)
    })
    .await?;

    maintenance.set("11T01:30");
    // The fresh cookie has expired too.
    server.wait_names("17.cookies", &[]).await?;
    server.wait_names(&short, &[]).await?;
    assert_eq!(maintenance.metrics.errors.get(), 0);
    maintenance.stop().await
}

#[tokio::test]
async fn index_that_expires_or_rejects_cookies_is_dropped() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let indexes = [
        ("1.cookies", "ttl", doc! { "expireAfterSeconds": 1 << 30 }),
        ("2.cookies", "t_1", doc! { "unique": true }),
        (
            "3.cookies",
            "both",
            doc! { "unique": true, "expireAfterSeconds": 1 << 30 },
        ),
        ("4.cookies", "t_1", doc! {}),
        ("5.cookies", "t_1", doc! { "sparse": true }),
        (
            "6.cookies",
            "part",
            doc! { "partialFilterExpression": { "b": { "$gt": "x" } } },
        ),
    ];
    for (namespace, name, options) in &indexes {
        server
            .create_index(namespace, name, options.clone())
            .await?;
        server.write(namespace, "old", TTL + HOUR).await?;
        server.write(namespace, "fresh", HOUR).await?;
    }
    let maintenance = MaintenanceRun::start(&mongod, "10T00:30")?;
    for (namespace, ..) in &indexes[..3] {
        server.wait_no_index(namespace).await?;
        assert_eq!(server.names(namespace).await?, ["fresh", "old"]);
    }
    maintenance.set("10T01:00");
    for (namespace, ..) in &indexes {
        server.wait_names(namespace, &["fresh"]).await?;
    }
    for (namespace, ..) in &indexes[3..] {
        assert_eq!(server.indexes(namespace).await?.len(), 1, "{namespace}");
    }
    assert_eq!(maintenance.metrics.errors.get(), 0);
    maintenance.stop().await
}

#[tokio::test]
async fn new_collections_are_adopted_and_foreign_ones_stay_unchanged() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let foreign = [
        "17.orders",
        "99.orders",
        "017.cookies",
        "x17.cookies",
        "0.cookies",
    ];
    let soon = doc! { "expireAfterSeconds": 60 };
    for namespace in foreign {
        server.create_index(namespace, "t_1", soon.clone()).await?;
        server
            .create_index(namespace, "more", doc! { "sparse": true })
            .await?;
    }
    let before = server.indexes("17.orders").await?;
    let maintenance = MaintenanceRun::start(&mongod, "10T01:10")?;
    maintenance.wait_open(true).await?;
    server.write("17.cookies", "old", TTL + HOUR).await?;
    server.write("18.cookies", "fresh", HOUR).await?;
    maintenance.pass_ten_minutes();
    server.wait_names("17.cookies", &[]).await?;

    maintenance.set("10T12:00");
    maintenance.wait_open(false).await?;
    server.create_index("20.cookies", "t_1", soon).await?;
    server.database("18").drop().await?;
    maintenance.pass_ten_minutes();
    server.wait_no_index("20.cookies").await?;
    server.write("20.cookies", "old", TTL + HOUR).await?;
    server.wait_monitor().await?;
    assert_eq!(server.names("20.cookies").await?, ["old"]);
    for namespace in foreign {
        assert_eq!(server.indexes(namespace).await?, before, "{namespace}");
    }
    assert_eq!(maintenance.metrics.errors.get(), 0);
    maintenance.stop().await
}

#[tokio::test]
async fn expiry_continues_after_restarts_but_not_outside_the_window() -> Result<()> {
    let (mut mongod, server) = Server::start().await?;
    server.write("17.cookies", "old", TTL + HOUR).await?;
    let maintenance = MaintenanceRun::start(&mongod, "10T01:30")?;
    server.wait_names("17.cookies", &[]).await?;
    maintenance.stop().await?;

    // The sweep of this window is complete, so the next one starts in the next window.
    let maintenance = MaintenanceRun::start(&mongod, "11T00:40")?;
    server.write("17.cookies", "old", TTL + HOUR).await?;
    maintenance.set("11T01:40");
    server.wait_names("17.cookies", &[]).await?;
    mongod.kill()?;
    mongod.process.wait(TIMEOUT).await?;
    mongod.restart().await?;
    server.write("17.cookies", "older", TTL + HOUR).await?;
    maintenance.set("12T01:00");
    wait_until(TIMEOUT, "the expired cookie is deleted", async || {
        // A failed step is retried after a minute.
        maintenance.clock.advance(Duration::from_secs(5));
        Ok(server.names("17.cookies").await?.is_empty())
    })
    .await?;
    maintenance.stop().await?;

    let maintenance = MaintenanceRun::start(&mongod, "10T04:00")?;
    maintenance.wait_open(false).await?;
    server.write("17.cookies", "old", TTL + HOUR).await?;
    maintenance.pass_ten_minutes();
    maintenance.stop().await?;
    assert_eq!(server.names("17.cookies").await?, ["old"]);
    Ok(())
}

#[tokio::test]
async fn compaction_reclaims_expired_space_once_per_window() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    let old = server.fill("17.cookies", 60_000, TTL + HOUR).await?;
    server.write("18.cookies", "fresh", MINUTE).await?;
    let maintenance = MaintenanceRun::start(&mongod, "10T01:00")?;
    wait_until(10 * TIMEOUT, "all old cookies are deleted", async || {
        let cookies = server.collection("17.cookies");
        Ok(cookies.count_documents(doc! {}).await? == 60_000 - old)
    })
    .await?;
    server.checkpoint().await?;
    let before = server.bytes("17.cookies").await?;
    maintenance.set("10T02:59");
    assert_eq!(maintenance.collections_compacted(), 0);

    maintenance.set("10T03:00");
    maintenance.wait_compactions(1).await?;
    assert_eq!(maintenance.collections_compacted(), 1);
    assert!(maintenance.metrics.compaction_freed_bytes.get() > 1 << 20);
    let after = server.bytes("17.cookies").await?;
    assert!(after < before / 3 * 2, "{after} bytes, were {before}");
    let records = server.compactions().await?;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].get_str("_id")?, "17.cookies");
    for field in ["reusable", "freed"] {
        assert!(records[0].get_i64(field)? > 1 << 20, "{records:?}");
    }
    assert!(records[0].get_f64("seconds")? > 0.0);
    maintenance.stop().await?;

    // The same amount of space is reusable again, but the collection was already compacted in this window.
    server.fill("17.cookies", 60_000, TTL + HOUR).await?;
    let ids = doc! { "_id": { "$gt": "2" } };
    server.collection("17.cookies").delete_many(ids).await?;
    server.checkpoint().await?;
    let maintenance = MaintenanceRun::start(&mongod, "10T04:00")?;
    maintenance.wait_compactions(1).await?;
    assert_eq!(maintenance.collections_compacted(), 0);
    assert_eq!(server.compactions().await?, records);
    // No compaction starts outside the window; the next one starts in the next window.
    maintenance.set("10T12:00");
    wait_until(TIMEOUT, "the window is closed", async || {
        Ok(maintenance.metrics.compaction_open.get() == 0)
    })
    .await?;
    assert_eq!(maintenance.collections_compacted(), 0);
    maintenance.set("11T03:00");
    maintenance.wait_compactions(2).await?;
    assert_eq!(maintenance.collections_compacted(), 1);
    assert_ne!(server.compactions().await?, records);
    assert_eq!(maintenance.metrics.errors.get(), 0);
    maintenance.stop().await
}

/// The TTL of a second consumer on the same server does not override the owner's.
#[tokio::test]
async fn one_consumer_owns_expiry_and_another_takes_over_after_it_stops() -> Result<()> {
    let (mongod, server) = Server::start().await?;
    server.write("17.cookies", "old", TTL + HOUR).await?;
    server.write("17.cookies", "ten-days", DAY * 10).await?;
    let first = MaintenanceRun::start(&mongod, "10T01:10")?;
    server.wait_names("17.cookies", &["ten-days"]).await?;
    assert_eq!(first.metrics.owner.get(), 1);

    let other = ConsumerOptions {
        name: "other",
        ttl: DAY * 7,
        ..ConsumerOptions::default()
    };
    let second = MaintenanceRun::start_as(other, &mongod, "11T01:30")?;
    let is_owner = async |maintenance: &MaintenanceRun, is_owner: i64| {
        wait_until(TIMEOUT, "the maintenance owner is reported", async || {
            Ok(maintenance.metrics.owner.get() == is_owner)
        })
        .await
    };
    is_owner(&second, 0).await?;
    second.wait_open(true).await?;
    assert_eq!(second.metrics.overdue_max.get(), 0);
    assert_eq!(server.names("17.cookies").await?, ["ten-days"]);

    // The lease expires by the server's clock.
    first.stop().await?;
    server.expire_lease().await?;
    second.pass_ten_minutes();
    is_owner(&second, 1).await?;
    server.wait_names("17.cookies", &[]).await?;

    // The second consumer stays the owner when the first one restarts.
    let again = MaintenanceRun::start(&mongod, "10T00:30")?;
    wait_until(TIMEOUT, "the first consumer has checked", async || {
        Ok(again.metrics.owner.get() == 0 && second.metrics.owner.get() == 1)
    })
    .await?;
    again.stop().await?;
    second.stop().await
}

#[tokio::test]
async fn cursors_of_removed_consumers_are_deleted_without_a_window() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let client = mongodb::Client::with_uri_str(mongod.uri()).await?;
    let own = client.database("cookiesync");
    let cursors = own.collection::<Document>("cursors");
    let queue = own.collection::<Document>("retry_queue");
    let now = DateTime::now().timestamp_millis();
    let at = |age: Duration| DateTime::from_millis(now - i64::try_from(age.as_millis()).unwrap());
    for (name, age) in [("renamed", DAY * 91), ("away", DAY * 89)] {
        let cursor =
            doc! { "_id": { "c": name, "p": "p" }, "epoch": "1", "sequence": 1_i64, "at": at(age) };
        cursors.insert_one(cursor).await?;
        let micros = at(age).timestamp_millis() * 1_000;
        let entry = doc! { "_id": { "c": name, "n": micros }, "dsp": 17_i64 };
        queue.insert_one(entry).await?;
    }
    let never = ["--expiry-window", "never"];
    let consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &never).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await?;
    wait_until(
        TIMEOUT,
        "the cursor of the removed consumer is deleted",
        async || {
            let names = cursors.distinct("_id.c", doc! {}).await?;
            Ok(names == [Bson::from("away"), Bson::from("node")])
        },
    )
    .await?;
    let names = queue.distinct("_id.c", doc! {}).await?;
    assert!(!names.contains(&Bson::from("renamed")), "{names:?}");
    assert!(names.contains(&Bson::from("away")), "{names:?}");
    Ok(())
}
