//! Tests that every cookie has exactly one outcome at any time, even across disconnects and restarts.
//!
//! The harness checks the balance in every scrape of every test. In these tests, outcomes change, for example from undelivered to lost.

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::scrape::{Samples, names};
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{Consumer, Producer, TIMEOUT, accept_all, embedded, wait_until},
    stream_client::{Subscription, from_cursor, from_newest},
    tcp_proxy::TcpProxy,
};

/// More cookies than fit into a log of 1 MiB, the minimum of `--log-bytes`.
const MORE_THAN_THE_LOG: u64 = 30_000;

/// Current value of a producer's metric for a subscriber.
async fn count(producer: &Producer, name: impl AsRef<str>, subscriber: &str) -> Result<u64> {
    let labels = [("subscriber", subscriber), ("call", "subscribe")];
    Ok(producer.metrics().await?.count(name, &labels))
}

/// Checks that a consumer received at least the delivered cookies minus the undelivered cookies, and at most the delivered
/// plus the redelivered cookies. It must have only this producer, and no count may change between the two scrapes.
#[track_caller]
fn check_between(producer: &Samples, consumer: &Samples) {
    let labels = [("subscriber", "node"), ("call", "subscribe")];
    let of = |metric| producer.count(metric, &labels);
    let (delivered, received) = (of(names::DELIVERED), consumer.count(names::RECEIVED, &[]));
    let range = delivered - of(names::UNDELIVERED)..=delivered + of(names::REDELIVERED);
    assert!(
        delivered > 0 && range.contains(&received),
        "{received} of {range:?}"
    );
}

#[tokio::test]
async fn undelivered_cookies_count_as_lost_after_the_log_evicts_them() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--log-bytes", "1MiB"]).await?;
    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    producer.accept_load(1, 1_000).await?;
    stream.read_to(1_000).await?;
    let hello = stream.hello.clone();
    drop(stream);
    producer.accept_load(2, MORE_THAN_THE_LOG).await?;

    // Resumes like a subscriber that stored only 100 cookies before it was killed.
    let request = from_cursor("node", &hello, 100);
    let mut stream = Subscription::open(&producer.grpc, request).await?;
    stream.read_to(1_000 + MORE_THAN_THE_LOG).await?;
    let (lost, received) = (stream.lost(), stream.cookies.len() as u64);
    assert_eq!(count(&producer, names::UNDELIVERED, "node").await?, 900);
    assert_eq!(
        count(&producer, names::SUBSCRIBER_LOST, "node").await?,
        lost
    );
    assert_eq!(
        count(&producer, names::DELIVERED, "node").await? - 900,
        100 + received
    );
    assert_eq!(count(&producer, names::QUEUED, "node").await?, 0);
    Ok(())
}

#[tokio::test]
async fn cookies_lost_to_the_lag_limit_are_recovered_by_an_older_cursor() -> Result<()> {
    const COOKIES: u64 = 20_000;
    let dir = TempDir::new()?;
    let flags = ["--queue-cookies", "1000", "--rewind-bytes", "0"];
    let producer = Producer::start(&dir, &flags).await?;
    let stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    let hello = stream.hello.clone();
    drop(stream);
    producer.accept_load(1, COOKIES).await?;
    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    stream.read_to(COOKIES).await?;
    let lost = count(&producer, names::SUBSCRIBER_LOST, "node").await?;
    ensure!(lost > 0, "the subscriber was not behind the lag limit");
    assert_eq!(stream.lost(), lost);
    drop(stream);

    let request = from_cursor("node", &hello, 0);
    let mut stream = Subscription::open(&producer.grpc, request).await?;
    stream.read_to(COOKIES).await?;
    assert_eq!(stream.lost(), 0);
    assert_eq!(count(&producer, names::RECOVERED, "node").await?, lost);
    assert_eq!(count(&producer, names::DELIVERED, "node").await?, COOKIES);
    assert_eq!(
        count(&producer, names::REDELIVERED, "node").await?,
        COOKIES - lost
    );
    Ok(())
}

/// Metrics of both processes once no cookie is queued or in flight.
async fn at_rest(producer: &Producer, consumer: &Consumer) -> Result<(Samples, Samples)> {
    wait_until(TIMEOUT, "no cookie is queued or waiting", async || {
        let (from, to) = (producer.metrics().await?, consumer.metrics().await?);
        let queued = from.count(names::QUEUED, &[]) + to.count(names::WAITING, &[]);
        Ok(queued == 0 && to.count(names::PRODUCERS_CONNECTED, &[]) == 1)
    })
    .await?;
    Ok((producer.metrics().await?, consumer.metrics().await?))
}

#[tokio::test]
async fn consumer_receives_each_delivered_cookie_once_despite_disconnects() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let grpc = producer.grpc.trim_start_matches("http://");
    let mut proxy = TcpProxy::to(grpc).await?;
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::spawn(&dir, "node", &[&proxy.url()], &store, &[]).await?;
    consumer.wait_ready().await?;
    producer.accept_load(1, 5_000).await?;
    let (from, to) = at_rest(&producer, &consumer).await?;
    check_between(&from, &to);
    assert_eq!(to.count(names::RECEIVED, &[]), 5_000);

    let plan = producer.ordered_load(2, 4_000, 8_000)?;
    let disconnects = async {
        for round in 1..=2 {
            wait_until(TIMEOUT, "more cookies are received", async || {
                let received = consumer.metrics().await?.count(names::RECEIVED, &[]);
                Ok(received >= 5_000 + round * 2_000)
            })
            .await?;
            proxy.disconnect().await;
            consumer.wait_not_ready("no producer is connected").await?;
            proxy.reconnect().await?;
        }
        anyhow::Ok(())
    };
    let (accepted, disconnected) = tokio::join!(accept_all(&plan), disconnects);
    disconnected?;
    accepted?;
    let (from, to) = at_rest(&producer, &consumer).await?;
    check_between(&from, &to);
    assert_eq!(to.count(names::RECEIVED, &[]), 13_000);
    Ok(())
}

#[tokio::test]
async fn ledger_balances_in_every_scrape_under_load_with_losses_and_resumes() -> Result<()> {
    let dir = TempDir::new()?;
    let flags = ["--log-bytes", "1MiB", "--queue-cookies", "3000"];
    let producer = Producer::start(&dir, &flags).await?;
    let hello = Subscription::open(&producer.grpc, from_newest("node")).await?;
    let hello = hello.hello.clone();
    let plan = producer.ordered_load(3, 20_000, 60_000)?;
    let load_ended = CancellationToken::new();
    let loading = async {
        let accepted = accept_all(&plan).await;
        load_ended.cancel();
        accepted
    };
    let scraping = async {
        let mut scrapes = 0_u64;
        while !load_ended.is_cancelled() {
            producer.metrics().await?;
            scrapes += 1;
        }
        anyhow::Ok(scrapes)
    };
    let resuming = async {
        // Each stream starts at another position: before, at or after the end of the previous one.
        let mut lags = [0, 2_500, 9_000, 100, 30_000].into_iter().cycle();
        while !load_ended.is_cancelled() {
            let newest = producer.appended().await?;
            let cursor = newest.saturating_sub(1_000 + lags.next().unwrap_or(0));
            let request = from_cursor("node", &hello, cursor);
            let mut stream = Subscription::open(&producer.grpc, request).await?;
            stream.read_to(cursor + 1_000).await?;
        }
        anyhow::Ok(())
    };
    let (accepted, scrapes, resumed) = tokio::join!(loading, scraping, resuming);
    accepted?;
    resumed?;
    ensure!(scrapes? > 10, "too few scrapes during the load");
    for name in [names::UNDELIVERED, names::SUBSCRIBER_LOST] {
        ensure!(count(&producer, name, "node").await? > 0, "no {name}");
    }
    Ok(())
}
