//! Tests that restarts, kills and unusual start orders lose no cookies.

use anyhow::Result;
use bench::{load, traffic::Traffic, verify::RequestHistory as _};
use serde_json::json;
use tempfile::TempDir;
use testkit::scrape::names;
use tokio_util::sync::CancellationToken;

use crate::{
    documents::Documents,
    harness::{
        Addresses, Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, accept_all, embedded, expect_exit,
        expected_contents, wait_until,
    },
    mongods::shared,
    tcp_proxy::TcpProxy,
};

async fn wait_appended(producer: &Producer, cookies: u64) -> Result<()> {
    wait_until(TIMEOUT, "more cookies are appended", async || {
        Ok(producer.appended().await? >= cookies)
    })
    .await
}

/// Kills the consumer under load and restarts it.
async fn crash_under_load(producer: &Producer, consumer: &mut Consumer) -> Result<Traffic> {
    let plan = producer.ordered_load(1, 4_000, 10_000)?;
    let crash = async {
        consumer.wait_written(2_000).await?;
        consumer.process.kill()?;
        let missed = producer.appended().await? + 2_000;
        wait_appended(producer, missed.min(9_000)).await?;
        consumer.process.restart()?;
        consumer.wait_ready().await
    };
    let (accepted, crashed) = tokio::join!(accept_all(&plan), crash);
    crashed?;
    accepted?;
    Ok(plan.traffic)
}

#[tokio::test]
async fn killed_consumer_with_embedded_store_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    let traffic = crash_under_load(&producer, &mut consumer).await?;
    consumer
        .wait_lookups(&expected_contents(&traffic, 10_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn killed_consumer_with_mongodb_loses_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mongod = shared::start().await?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &mongod.uri(), &[]).await?;
    let traffic = crash_under_load(&producer, &mut consumer).await?;
    let documents = Documents::connect(&mongod.uri()).await?;
    documents
        .wait_exactly(&expected_contents(&traffic, 10_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn killed_producer_loses_no_delivered_cookie_and_its_next_epoch_is_read_in_full() -> Result<()>
{
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept("alice", 1, "first-epoch").await?;
    consumer
        .wait_lookup("alice", json!({"1": "first-epoch"}))
        .await?;

    producer.process.kill()?;
    consumer.wait_not_ready("no producer is connected").await?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    // Sent before the consumer reconnects: it must read the new epoch from the first cookie.
    producer.accept("alice", 2, "second-epoch").await?;
    consumer
        .wait_lookup("alice", json!({"1": "first-epoch", "2": "second-epoch"}))
        .await?;
    let metrics = consumer.metrics().await?;
    // The producer was idle, so its epoch history has the end of the epoch.
    let restarts = "consumer_producer_restarts_total";
    assert_eq!(metrics.count(restarts, &[("loss", "none")]), 1);
    assert_eq!(metrics.count(names::UNCERTAIN_RESTARTS, &[]), 0);
    assert_eq!(metrics.count(names::LOST, &[]), 0);
    Ok(())
}

#[tokio::test]
async fn consumer_waits_until_store_and_producer_are_available() -> Result<()> {
    let dir = TempDir::new()?;
    let mut mongod = shared::start().await?;
    mongod.kill()?;
    let addresses = Addresses::free()?;
    let url = format!("http://{}", addresses.grpc);
    let mut consumer = Consumer::spawn(&dir, "node", &[&url], &mongod.uri(), &[]).await?;
    consumer.wait_not_ready("store: ").await?;
    mongod.restart().await?;
    consumer.wait_not_ready("no producer is connected").await?;

    let producer = Producer::start_at(&dir, &addresses, &[]).await?;
    producer.accept("alice", 17, "a-1").await?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await
}

#[tokio::test]
async fn drains_of_two_producers_lose_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let mut first = Producer::start(&dir, &[]).await?;
    let mut second = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&first, &second], &store, &[]).await?;

    let plans = [
        first.ordered_load(6, 2_000, 3_000)?,
        second.ordered_load(7, 2_000, 3_000)?,
    ];
    let [a, b] = &plans;
    let (a, b) = tokio::join!(accept_all(a), accept_all(b));
    a.and(b)?;
    for producer in [&mut first, &mut second] {
        let status = producer.process.stop(DRAIN_TIMEOUT).await?;
        expect_exit(&producer.process, status, 0)?;
    }
    consumer.wait_settled(6_000).await?;
    for plan in &plans {
        consumer
            .wait_lookups(&expected_contents(&plan.traffic, 3_000))
            .await?;
    }
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn two_addresses_of_one_producer_do_not_close_each_others_streams() -> Result<()> {
    let dir = TempDir::new()?;
    let addresses = Addresses::free()?;
    let port = addresses
        .grpc
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .to_owned();
    let addresses = Addresses {
        grpc: format!("0.0.0.0:{port}"),
        ..addresses
    };
    let producer = Producer::start_at(&dir, &addresses, &[]).await?;
    let urls = [
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.2:{port}"),
    ];
    let urls = urls.each_ref().map(String::as_str);
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::spawn(&dir, "node", &urls, &store, &[]).await?;
    consumer.wait_ready().await?;

    let plan = producer.ordered_load(8, 1_500, 5_000)?;
    accept_all(&plan).await?;
    consumer
        .wait_lookups(&expected_contents(&plan.traffic, 5_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    // One stream per address, and a few more until the consumer detects that both lead to one producer.
    let streams = producer.metrics().await?.count(names::STREAMS, &[]);
    assert!((2..=6).contains(&streams), "{streams} streams");
    Ok(())
}

#[tokio::test]
async fn cookies_of_many_busy_connections_are_all_stored() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    let plan = load::Plan {
        connections: 16.try_into()?,
        pipeline: Some(4.try_into()?),
        requests: Some(8_000),
        ..producer.load(9)?
    };
    let outcome = load::run(&plan, &CancellationToken::new()).await?;
    assert_eq!(
        (outcome.counts.accepted, outcome.counts.errors()),
        (8_000, 0)
    );
    consumer.wait_settled(8_000).await?;
    for history in &outcome.histories {
        let known = (0..history.sent()).map(|number| {
            let cookie = plan.traffic.cookie(history.connection(), number);
            let buyer_uids = [(cookie.dsp_id(), cookie.buyer_uid().to_owned())];
            (cookie.user_id().to_owned(), buyer_uids.into())
        });
        consumer.wait_lookups(&known.collect()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn closed_connections_lose_nothing() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut proxy = TcpProxy::to(producer.grpc.trim_start_matches("http://")).await?;
    let store = embedded(&dir.path().join("store"));
    let url = proxy.url();
    let mut consumer = Consumer::spawn(&dir, "node", &[&url], &store, &[]).await?;
    consumer.wait_ready().await?;

    let plan = producer.ordered_load(10, 3_000, 9_000)?;
    let disconnects = async {
        for appended in [1_500, 4_500] {
            wait_appended(&producer, appended).await?;
            proxy.disconnect().await;
            consumer.wait_not_ready("no producer is connected").await?;
            wait_appended(&producer, appended + 1_500).await?;
            proxy.reconnect().await?;
            consumer.wait_ready().await?;
        }
        anyhow::Ok(())
    };
    let (accepted, disconnected) = tokio::join!(accept_all(&plan), disconnects);
    disconnected?;
    accepted?;
    consumer.wait_settled(9_000).await?;
    consumer
        .wait_lookups(&expected_contents(&plan.traffic, 9_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}
