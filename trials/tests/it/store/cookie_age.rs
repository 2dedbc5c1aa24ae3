//! Cookies that were accepted before they are released: by their own times the newest wins in every store, and readers that
//! do not understand ages are counted. The producer runs in the test, which appends to its log.

use std::time::Duration;

use anyhow::{Result, ensure};
use bench::{
    admin,
    mongod::Mongod,
    scrape::{Samples, names},
};
use producer::{app::App, config::Config, log::Log};
use proto::{v1::SubscribeRequest, wire::CookieRef};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    documents::Documents,
    harness::{Consumer, Known, TIMEOUT, embedded, wait_until},
    stream_client::{CookieStream, Subscription, from_newest},
};

/// How long a cookie waits: longer than a test takes, and less than any time to live.
const WAITED: Duration = Duration::from_secs(600);

/// A producer in this process, on free ports.
async fn producer() -> Result<App> {
    let state = "--state=none".to_owned();
    let ports = ["--http", "--grpc", "--admin"].map(|port| format!("{port}=127.0.0.1:0"));
    let arguments = ["producer".to_owned(), state].into_iter().chain(ports);
    App::start(Config::load(arguments.map(Into::into))?).await
}

fn grpc(producer: &App) -> String {
    format!("http://{}", producer.addresses().grpc)
}

async fn metrics(producer: &App) -> Result<Samples> {
    admin::metrics(&producer.addresses().admin.to_string()).await
}

/// Releases cookies `(user, DSP, buyer uid)` now that were accepted so long ago.
fn release(log: &Log, age: Duration, cookies: &[(&str, u32, &str)]) -> Result<u64> {
    let accepted = log.unix_micros() - u64::try_from(age.as_micros())?;
    let cookie = |&(user_id, dsp_id, buyer_uid)| {
        let cookie = CookieRef {
            user_id,
            dsp_id,
            buyer_uid,
            age_micros: 0,
        };
        (cookie, accepted)
    };
    log.append_accepted(cookies.iter().map(cookie))?;
    Ok(accepted)
}

#[tokio::test]
async fn last_accepted_cookie_wins_in_every_store_whatever_the_release_order() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = Mongod::start(&dir.path().join("mongod")).await?;
    let producer = producer().await?;
    let (log, http) = (producer.log(), producer.addresses().http.to_string());
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

    // The first of a DSP is set aside where its database is still to be made, and keeps its time there.
    let first = release(log, WAITED, &[("waited", 17, "w"), ("later", 17, "old")])?;
    settled(2).await?;
    let sync = admin::sync(&http, "later", 17, "new").await?;
    ensure!(sync.status == 200, "{sync:?}");
    let sync = admin::sync(&http, "before", 17, "new").await?;
    ensure!(sync.status == 200, "{sync:?}");
    settled(4).await?;
    // Two that the store has newer, and two that one batch has.
    release(
        log,
        WAITED / 2,
        &[("before", 17, "old"), ("later", 17, "between")],
    )?;
    release(log, Duration::ZERO, &[("together", 17, "new")])?;
    release(log, WAITED, &[("together", 17, "old")])?;
    settled(8).await?;

    for consumer in &consumers {
        for user in ["later", "before", "together"] {
            consumer.wait_known(user, json!({"17": "new"})).await?;
        }
        let metrics = consumer.metrics().await?;
        let kept_out = [names::STALE, names::SUPERSEDED].map(|name| metrics.count(name, &[]));
        ensure!(kept_out.iter().sum::<u64>() >= 3, "{kept_out:?}");
        // Delay is from the release: none of these took as long as one had waited.
        for figure in [names::RECEIVED_SECONDS, names::STORED_SECONDS] {
            let name = figure.name.to_owned();
            ensure!(metrics.count(format!("{name}_count"), &[]) >= 8);
            let sum = metrics.count(format!("{name}_sum"), &[]);
            ensure!(sum < WAITED.as_secs() / 2, "{name} is {sum} s in all");
        }
    }
    let documents = Documents::connect(&mongod.uri()).await?;
    let known = [
        ("before", "new"),
        ("later", "new"),
        ("together", "new"),
        ("waited", "w"),
    ]
    .map(|(user, uid)| (user.to_owned(), [(17, uid.to_owned())].into()));
    assert_eq!(documents.known().await?, Known::from(known));
    let stored = documents.accepted_millis(17, "waited").await?;
    assert_eq!(stored, first / 1000);
    drop(consumers);
    producer.drain().await?;
    Ok(())
}

/// Nothing of it is in the store's way, whatever its age claims.
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
    release(producer.log(), 30 * day, &[("ancient", 17, "a")])?;
    release(producer.log(), Duration::ZERO, &[("fresh", 17, "f")])?;
    consumer.wait_settled(2).await?;
    consumer.wait_known("fresh", json!({"17": "f"})).await?;
    consumer
        .knows_none(["ancient".to_owned()].into_iter())
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
    let lacking = async |expected: u64| {
        wait_until(
            TIMEOUT,
            &format!("{expected} readers lack it"),
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
    let understanding = SubscribeRequest {
        supports_age: true,
        ..from_newest("new")
    };
    let new = Subscription::open(&grpc, understanding).await?;
    lacking(0).await?;
    let old = Subscription::open(&grpc, from_newest("old")).await?;
    lacking(1).await?;
    let mut one_by_one = CookieStream::open(&grpc, "older").await?;
    lacking(2).await?;
    // It gets the age all the same, which says how long the cookie had waited when it was released.
    release(producer.log(), WAITED, &[("waited", 17, "w")])?;
    one_by_one.read().await?;
    let age = Duration::from_micros(one_by_one.cookies[0].age_micros);
    ensure!(age >= WAITED && age < 2 * WAITED, "{age:?}");
    drop(old);
    lacking(1).await?;
    drop(one_by_one);
    lacking(0).await?;
    drop((new, consumer));
    producer.drain().await?;
    Ok(())
}
