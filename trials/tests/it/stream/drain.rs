//! Tests of clean shutdown: every accepted cookie is delivered and stored, and the exit code reports the result.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bench::load;
use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;
use testkit::{
    http::HttpClient,
    programs::{Process, ServerProcess},
    scrape::{Samples, names},
};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    harness::{
        Consumer, DRAIN_TIMEOUT, Producer, TIMEOUT, embedded, expect_exit, expected_contents,
        wait_until,
    },
    mongods::shared::{self, SharedMongod},
    stream_client::{CookieStream, Subscription, from_newest},
};

#[tokio::test]
async fn sigterm_drains_and_exits_0() -> Result<()> {
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    // With this flush interval, only the drain can store the cookie.
    let flags = ["--flush-interval", "10s"];
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &flags).await?;

    producer.accept("alice", 17, "a-1").await?;
    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)?;
    let status = consumer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&consumer.process, status, 0)?;

    producer.process.restart()?;
    producer.wait_ready().await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await
}

#[tokio::test]
async fn drain_with_an_unfinished_subscriber_names_it_and_exits_1() -> Result<()> {
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &["--drain-timeout", "1s"]).await?;
    let behind = CookieStream::open(&producer.grpc, "behind").await?;
    // More than the flow-control window and the buffers of a client that does not read.
    producer.accept_load(1, 30_000).await?;
    let status = producer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 1)?;
    let log = producer.process.last_lines(usize::MAX);
    let message = "drain timed out after 1s; these did not receive all cookies: behind";
    ensure!(log.contains(message), "{log}");
    drop(behind);
    Ok(())
}

#[tokio::test]
async fn producer_drained_under_load_delivers_every_accepted_cookie() -> Result<()> {
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let store = embedded(&dir.path().join("store"));
    let consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    let mut reader = Subscription::open(&producer.grpc, from_newest("reader")).await?;
    let mut cookies = CookieStream::open(&producer.grpc, "reader").await?;

    let plan = producer.ordered_load(1, 4_000, 1_000_000)?;
    let stop = CancellationToken::new();
    let load = load::run(&plan, &stop);
    let drain = async {
        wait_until(TIMEOUT, "cookies are appended", async || {
            Ok(producer.appended().await? > 2_000)
        })
        .await?;
        producer.process.signal(Signal::TERM)?;
        let status = producer.process.wait(DRAIN_TIMEOUT).await?;
        stop.cancel();
        expect_exit(&producer.process, status, 0)
    };
    let (outcome, drained, read, read_cookies) =
        tokio::join!(load, drain, reader.read_to_end(), cookies.read_to_end());
    drained?;
    let outcome = outcome?;

    let (goodbye, status) = read?;
    let last = goodbye.context("the goodbye is missing")?;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(reader.cookies.len() as u64, last);
    assert_eq!((reader.lost(), reader.hello.first_sequence), (0, 1));
    let status = read_cookies?;
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert_eq!(cookies.cookies, reader.cookies);

    // On one connection, the accepted cookies are the first ones sent. The last responses may be lost.
    ensure!(
        (outcome.counts.accepted..=outcome.counts.sent).contains(&last),
        "{last} cookies were delivered:\n{}",
        outcome.report().summary()
    );
    for (number, cookie) in (0..).zip(&reader.cookies) {
        let sent = plan.traffic.cookie(0, number);
        assert_eq!(cookie.user_id, sent.user_id());
        assert_eq!(cookie.buyer_uid, sent.buyer_uid());
    }
    consumer.wait_settled(last).await?;
    consumer
        .wait_lookups(&expected_contents(&plan.traffic, last))
        .await
}

/// Stops and restarts two producers under load and a node that reads from both, and checks the reported losses.
async fn stop_and_restart(producers_first: bool) -> Result<()> {
    let dir = TempDir::new()?;
    let mut producers = [
        Producer::start(&dir, &["--id=one"]).await?,
        Producer::start(&dir, &["--id=other"]).await?,
    ];
    let store = embedded(&dir.path().join("store"));
    let [one, other] = &producers;
    let mut consumer = Consumer::start(&dir, "node", &[one, other], &store, &[]).await?;

    let plans = [
        one.ordered_load(1, 2_000, 1_000_000)?,
        other.ordered_load(2, 2_000, 1_000_000)?,
    ];
    let cancel = CancellationToken::new();
    let load = async { tokio::join!(load::run(&plans[0], &cancel), load::run(&plans[1], &cancel)) };
    let stopping = async {
        let stopped = async {
            wait_appended(&producers, 1_000).await?;
            if !producers_first {
                stop(&mut consumer.process).await?;
                wait_appended(&producers, 1_000).await?;
            }
            for producer in &mut producers {
                stop(&mut producer.process).await?;
            }
            if producers_first {
                stop(&mut consumer.process).await?;
            }
            anyhow::Ok(())
        };
        let stopped = stopped.await;
        cancel.cancel();
        stopped
    };
    let (_, stopped) = tokio::join!(load, stopping);
    stopped?;

    for producer in &mut producers {
        producer.process.restart()?;
        producer.wait_ready().await?;
    }
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    let restarts = |metrics: &Samples, loss| {
        metrics.count("consumer_producer_restarts_total", &[("loss", loss)])
    };
    wait_until(TIMEOUT, "both restarts are reported", async || {
        let metrics = consumer.metrics().await?;
        Ok(restarts(&metrics, "none") + restarts(&metrics, "exact") == 2)
    })
    .await?;
    let (metrics, lost) = (consumer.metrics().await?, consumer.lost().await?);
    if producers_first {
        assert_eq!((restarts(&metrics, "none"), lost), (2, 0));
    } else {
        ensure!(lost >= 2_000, "{lost} are lost");
        assert_eq!(restarts(&metrics, "exact"), 2);
    }
    Ok(())
}

/// Waits until each producer has appended `cookies` more.
async fn wait_appended(producers: &[Producer], cookies: u64) -> Result<()> {
    for producer in producers {
        let enough = producer.appended().await? + cookies;
        wait_until(TIMEOUT, "more cookies are appended", async || {
            Ok(producer.appended().await? >= enough)
        })
        .await?;
    }
    Ok(())
}

async fn stop(process: &mut Process) -> Result<()> {
    let status = process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(process, status, 0)
}

#[tokio::test]
async fn nothing_is_lost_when_producers_stop_before_consumers() -> Result<()> {
    stop_and_restart(true).await
}

/// Therefore producers must be stopped first.
#[tokio::test]
async fn cookies_accepted_after_consumers_stop_are_lost_and_counted() -> Result<()> {
    stop_and_restart(false).await
}

#[tokio::test]
async fn stalled_clients_do_not_delay_the_drain() -> Result<()> {
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    let mut reader = Subscription::open(&producer.grpc, from_newest("reader")).await?;
    producer.accept_numbers(1..=10).await?;

    // A partial request, a complete one followed by a partial one, and silent connections to each port.
    let mut partial = HttpClient::connect(&producer.http).await?;
    partial
        .send(b"GET /?d=1&b=x HTTP/1.1\r\nCookie: ui")
        .await?;
    let mut pipelined = HttpClient::connect(&producer.http).await?;
    pipelined
        .send(b"GET /none HTTP/1.1\r\n\r\nGET /?d=1&b=x HTTP/1.1\r\n")
        .await?;
    assert_eq!(pipelined.response().await?.status, 404);
    let _silent_http = HttpClient::connect(&producer.http).await?;
    let _silent_admin = HttpClient::connect(&producer.admin).await?;
    let grpc = producer.grpc.trim_start_matches("http://").to_owned();
    let _silent_grpc = TcpStream::connect(&grpc).await?;
    // An HTTP/2 connection without calls.
    let endpoint = proto::client::endpoint(producer.grpc.clone())?;
    let _idle_grpc = endpoint.connect().await?;

    producer.process.signal(Signal::TERM)?;
    let (goodbye, status) = reader.read_to_end().await?;
    assert_eq!(goodbye, Some(10));
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let status = producer.process.wait(DRAIN_TIMEOUT).await?;
    expect_exit(&producer.process, status, 0)
}

#[tokio::test]
async fn second_signal_ends_a_hanging_drain() -> Result<()> {
    let dir = TempDir::new()?;
    let (mut mongod, producer, mut consumer) = node(&dir, "1h").await?;
    mongod.pause()?;
    receive_one(&producer, &consumer).await?;

    consumer.process.signal(Signal::TERM)?;
    wait_until(TIMEOUT, "the drain begins", async || {
        Ok(consumer.process.last_lines(20).contains("draining"))
    })
    .await?;
    assert_eq!(consumer.process.exit_status()?, None);
    consumer.process.signal(Signal::INT)?;
    let status = consumer.process.wait(Duration::from_secs(5)).await?;
    expect_exit(&consumer.process, status, 130)?;

    // The cookie never became durable, so it is redelivered.
    mongod.resume()?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await
}

#[tokio::test]
async fn unfinished_drain_ends_at_its_deadline_and_logs_the_redelivery() -> Result<()> {
    let dir = TempDir::new()?;
    let (mut mongod, producer, mut consumer) = node(&dir, "500ms").await?;
    mongod.pause()?;
    receive_one(&producer, &consumer).await?;
    let status = consumer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&consumer.process, status, 0)?;
    check_redelivered(&mut mongod, &mut consumer).await
}

#[tokio::test]
async fn drain_does_not_wait_for_an_unavailable_store() -> Result<()> {
    let dir = TempDir::new()?;
    let (mut mongod, producer, mut consumer) = node(&dir, "1h").await?;
    mongod.kill()?;
    mongod.process.wait(TIMEOUT).await?;
    receive_one(&producer, &consumer).await?;
    let status = consumer.process.stop(DRAIN_TIMEOUT).await?;
    expect_exit(&consumer.process, status, 0)?;
    mongod.process.restart()?;
    check_redelivered(&mut mongod, &mut consumer).await
}

/// Starts a producer, a `mongod`, and a consumer that writes to it.
async fn node(dir: &TempDir, drain_timeout: &str) -> Result<(SharedMongod, Producer, Consumer)> {
    let mongod = shared::start().await?;
    let producer = Producer::start(dir, &[]).await?;
    let flags = ["--drain-timeout", drain_timeout];
    let consumer = Consumer::start(dir, "node", &[&producer], &mongod.uri(), &flags).await?;
    Ok((mongod, producer, consumer))
}

/// Checks that the drain logged the unstored batch, and that it is redelivered after the restart.
async fn check_redelivered(mongod: &mut ServerProcess, consumer: &mut Consumer) -> Result<()> {
    let log = consumer.process.last_lines(20);
    ensure!(
        log.contains("last batch not stored; it will be redelivered"),
        "{log}"
    );
    mongod.resume()?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer.wait_lookup("alice", json!({"17": "a-1"})).await
}

/// Sends one cookie and waits until the consumer, whose store may be paused, has received it.
async fn receive_one(producer: &Producer, consumer: &Consumer) -> Result<()> {
    producer.accept("alice", 17, "a-1").await?;
    wait_until(TIMEOUT, "the cookie is received", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count(names::RECEIVED, &[]) == 1)
    })
    .await
}
