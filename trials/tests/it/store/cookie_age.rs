//! Tests of cookies that are released some time after they were accepted: the newest acceptance time wins in every store, and
//! clients without age support are counted.
//!
//! The producer runs in the test process, so that the tests append directly to the producer's log.

use std::time::Duration;

use anyhow::{Result, ensure};
use producer::{app::App, config::Config, log::Log};
use proto::{units::DspId, v1::SubscribeRequest, wire::CookieRef};
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    admin,
    scrape::{Samples, names},
};

use crate::{
    documents::Documents,
    harness::{Consumer, StoreContents, TIMEOUT, embedded, wait_until},
    mongods::shared,
    stream_client::{CookieStream, Subscription, from_newest},
};

/// Age of a delayed cookie: longer than a test takes and shorter than the TTL.
const DELAY: Duration = Duration::from_secs(600);

/// Starts a producer in this process, on free ports.
async fn producer() -> Result<App> {
    let state = "--state=/nonexistent".to_owned();
    let ports = ["--http", "--grpc", "--admin"].map(|port| format!("{port}=127.0.0.1:0"));
    let arguments = ["producer".to_owned(), state].into_iter().chain(ports);
    App::start(Config::load(arguments.map(Into::into))?).await
}

fn grpc(producer: &App) -> String {
    format!("http://{}", producer.addresses.grpc)
}

async fn metrics(producer: &App) -> Result<Samples> {
    admin::metrics(&producer.addresses.admin.to_string()).await
}

/// Appends cookies `(user, DSP, buyer uid)` that were accepted `age` ago, and returns their acceptance time in microseconds.
fn release(log: &Log, age: Duration, cookies: &[(&str, u32, &str)]) -> Result<u64> {
    let accepted = log.now().before(u64::try_from(age.as_micros())?);
    let cookie = |&(user_id, dsp_id, buyer_uid)| {
        let cookie = CookieRef {
            user_id,
            dsp_id: DspId(dsp_id),
            buyer_uid,
            age_micros: 0,
        };
        (cookie, accepted)
    };
    log.append_accepted(cookies.iter().map(cookie))?;
    Ok(accepted.0)
}

#[tokio::test]
async fn last_accepted_cookie_wins_in_every_store_whatever_the_release_order() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let producer = producer().await?;
    let (log, http) = (&producer.log, producer.addresses.http.to_string());
    let urls = [grpc(&producer)];
    let urls = urls.each_ref().map(String::as_str);
    let stores = [embedded(&dir.path().join("store")), mongod.uri()];
    let mut consumers = Vec::new();
    for (name, store) in ["embedded", "mongodb"].into_iter().zip(&stores) {
        let mut consumer = Consumer::spawn(&dir, name, &urls, store, &[]).await?;
        consumer.wait_ready().await?;
        consumers.push(consumer);
    }
    let settled = async |cookies| {
        for consumer in &consumers {
            consumer.wait_settled(cookies).await?;
        }
        anyhow::Ok(())
    };

    // The first cookies of a DSP wait in the retry queue until its database is created, and keep their time.
    let first = release(log, DELAY, &[("delayed", 17, "w"), ("later", 17, "old")])?;
    settled(2).await?;
    let sync = admin::sync(&http, "later", 17, "new").await?;
    ensure!(sync.status == 200, "{sync:?}");
    let sync = admin::sync(&http, "before", 17, "new").await?;
    ensure!(sync.status == 200, "{sync:?}");
    settled(4).await?;
    // Two cookies are older than the stored values, and two are in one batch.
    release(
        log,
        DELAY / 2,
        &[("before", 17, "old"), ("later", 17, "between")],
    )?;
    release(log, Duration::ZERO, &[("together", 17, "new")])?;
    release(log, DELAY, &[("together", 17, "old")])?;
    settled(8).await?;

    for consumer in &consumers {
        for user in ["later", "before", "together"] {
            consumer.wait_lookup(user, json!({"17": "new"})).await?;
        }
        let metrics = consumer.metrics().await?;
        let discarded = [names::STALE, names::SUPERSEDED].map(|name| metrics.count(name, &[]));
        ensure!(discarded.iter().sum::<u64>() >= 3, "{discarded:?}");
        // Latency counts from the release, so it does not include the delay.
        for metric in [names::RECEIVED_SECONDS, names::STORED_SECONDS] {
            let name = metric.name.to_owned();
            ensure!(metrics.count(format!("{name}_count"), &[]) >= 8);
            let sum = metrics.count(format!("{name}_sum"), &[]);
            ensure!(sum < DELAY.as_secs() / 2, "{name} is {sum} s in total");
        }
    }
    let documents = Documents::connect(&mongod.uri()).await?;
    let contents = [
        ("before", "new"),
        ("later", "new"),
        ("together", "new"),
        ("delayed", "w"),
    ]
    .map(|(user, uid)| (user.to_owned(), [(17, uid.to_owned())].into()));
    assert_eq!(documents.contents().await?, StoreContents::from(contents));
    let stored = documents.accepted_millis(17, "delayed").await?;
    assert_eq!(stored, first / 1000);
    drop(consumers);
    producer.drain().await?;
    Ok(())
}

#[tokio::test]
async fn cookie_expired_on_arrival_is_counted_and_not_stored() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = producer().await?;
    let urls = [grpc(&producer)];
    let urls = urls.each_ref().map(String::as_str);
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::spawn(&dir, "node", &urls, &store, &["--ttl=1h"]).await?;
    consumer.wait_ready().await?;
    let day = Duration::from_secs(86_400);
    release(&producer.log, 30 * day, &[("ancient", 17, "a")])?;
    release(&producer.log, Duration::ZERO, &[("fresh", 17, "f")])?;
    consumer.wait_settled(2).await?;
    consumer.wait_lookup("fresh", json!({"17": "f"})).await?;
    consumer
        .check_unknown(["ancient".to_owned()].into_iter())
        .await?;
    drop(consumer);
    producer.drain().await?;
    Ok(())
}

#[tokio::test]
async fn connected_clients_without_age_support_are_counted() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = producer().await?;
    let grpc = grpc(&producer);
    let wait_unsupported = async |expected: u64| {
        wait_until(
            TIMEOUT,
            &format!("{expected} streams lack age support"),
            async || {
                let metrics = metrics(&producer).await?;
                Ok(metrics.count(names::STREAMS_WITHOUT_AGE_SUPPORT, &[]) == expected)
            },
        )
        .await
    };
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::spawn(&dir, "node", &[grpc.as_str()], &store, &[]).await?;
    consumer.wait_ready().await?;
    let supporting = SubscribeRequest {
        supports_age: true,
        ..from_newest("new")
    };
    let new = Subscription::open(&grpc, supporting).await?;
    wait_unsupported(0).await?;
    let old = Subscription::open(&grpc, from_newest("old")).await?;
    wait_unsupported(1).await?;
    let mut older = CookieStream::open(&grpc, "older").await?;
    wait_unsupported(2).await?;
    // The client receives the age anyway: the time from acceptance to release.
    release(&producer.log, DELAY, &[("delayed", 17, "w")])?;
    older.read().await?;
    let age = Duration::from_micros(older.cookies[0].age_micros);
    ensure!(age >= DELAY && age < 2 * DELAY, "{age:?}");
    drop(old);
    wait_unsupported(1).await?;
    drop(older);
    wait_unsupported(0).await?;
    drop((new, consumer));
    producer.drain().await?;
    Ok(())
}
