//! Tests of the metrics of subscribers, streams, DSPs and producers.

use anyhow::{Result, ensure};
use tempfile::TempDir;
use testkit::{
    http::HttpClient,
    scrape::{Samples, names},
};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, embedded, sync_request, wait_until},
    stream_client::{CookieStream, Subscription, from_cursor, from_newest},
};

const REQUEST_SECONDS: &str = "producer_edge_request_seconds";
const DSP_COOKIES: &str = "producer_dsp_cookies_total";
const RESUMES: &str = "producer_subscriber_resumes_total";

/// A metric of the subscriber `node`.
fn node_metric(samples: &Samples, name: impl AsRef<str>) -> u64 {
    samples.count(name, &[("subscriber", "node"), ("call", "subscribe")])
}

#[tokio::test]
async fn past_lag_appears_in_the_next_scrape() -> Result<()> {
    const COOKIES: u64 = 5_000;
    const MAX: &str = "producer_subscriber_lag_cookies_max";
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--rewind-bytes", "0"]).await?;
    drop(Subscription::open(&producer.grpc, from_newest("node")).await?);
    producer.accept_load(1, COOKIES).await?;
    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    stream.read_to(COOKIES).await?;
    let samples = producer.metrics().await?;
    assert_eq!(node_metric(&samples, names::LAG), 0);
    let max = node_metric(&samples, MAX);
    ensure!((1..=COOKIES).contains(&max), "{max}");
    let samples = producer.metrics().await?;
    assert_eq!(node_metric(&samples, MAX), max, "for a second scraper");
    assert_eq!(node_metric(&producer.metrics().await?, MAX), 0);
    Ok(())
}

#[tokio::test]
async fn lag_in_seconds_is_the_age_of_the_oldest_unsent_cookie() -> Result<()> {
    const SECONDS: &str = "producer_subscriber_lag_seconds";
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--rewind-bytes", "0"]).await?;
    drop(Subscription::open(&producer.grpc, from_newest("node")).await?);
    producer.accept_load(1, 1).await?;
    wait_until(TIMEOUT, "the lag grows", async || {
        let lag = producer.metrics().await?.sum(SECONDS, &[]);
        Ok(lag.is_some_and(|lag| lag > 0.1))
    })
    .await?;
    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    stream.read_to(1).await?;
    assert_eq!(producer.metrics().await?.sum(SECONDS, &[]), Some(0.0));
    Ok(())
}

#[tokio::test]
async fn dsps_above_the_series_limit_count_as_other() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    for dsp in (1..=64).chain([99, 100, 17]) {
        producer.accept("alice", dsp, "a").await?;
    }
    let mut connection = HttpClient::connect(&producer.http).await?;
    let invalid = [
        "/?d=17&b=x HTTP/1.1\r\n",
        "/?d=17&b= HTTP/1.1\r\nCookie: uid=u\r\n",
        "/?d=101&b= HTTP/1.1\r\nCookie: uid=u\r\n",
        "/?b=x HTTP/1.1\r\nCookie: uid=u\r\n",
        "/?d=x&b=x HTTP/1.1\r\nCookie: uid=u\r\n",
    ];
    let burst: String = invalid
        .map(|it| format!("GET {it}Host: x\r\n\r\n"))
        .concat();
    connection
        .send(format!("{burst}{}", sync_request("bob", 42, "b")).as_bytes())
        .await?;
    for _ in invalid {
        assert_eq!(connection.response().await?.status, 400);
    }
    assert_eq!(connection.response().await?.status, 200);

    // The duration is recorded after the response is sent.
    wait_until(TIMEOUT, "73 durations are recorded", async || {
        let timed = producer.metrics().await?.histogram(REQUEST_SECONDS);
        Ok((timed.count() - 73.0).abs() < 0.5)
    })
    .await?;
    let samples = producer.metrics().await?;
    for (dsp, outcome, count) in [
        ("17", "accepted", 2),
        ("42", "accepted", 2),
        ("other", "accepted", 2),
        ("17", "uid_missing", 1),
        ("17", "b_empty", 1),
        ("other", "b_empty", 1),
        ("none", "d_missing", 1),
        ("none", "d_invalid", 1),
    ] {
        let labels = [("dsp", dsp), ("outcome", outcome)];
        assert_eq!(
            samples.sum(DSP_COOKIES, &labels),
            Some(f64::from(count)),
            "{labels:?}"
        );
    }
    for outcome in samples.by_label(names::EDGE_REQUESTS, "outcome") {
        let (outcome, requests) = (&*outcome.0, outcome.1);
        let by_dsp = samples.count(DSP_COOKIES, &[("outcome", outcome)]);
        assert_eq!(by_dsp, requests, "{outcome}");
    }
    Ok(())
}

#[tokio::test]
async fn streams_are_counted_by_resume_outcome() -> Result<()> {
    let dir = TempDir::new()?;
    let flags = ["--log-bytes", "1MiB", "--rewind-bytes", "0"];
    let producer = Producer::start(&dir, &flags).await?;
    let stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    let hello = stream.hello.clone();
    drop(stream);
    let again = Subscription::open(&producer.grpc, from_newest("node")).await?;
    drop(again);
    let mut other = hello.clone();
    other.epoch -= 1;
    drop(Subscription::open(&producer.grpc, from_cursor("node", &other, 7)).await?);
    producer.accept_load(1, 30_000).await?;
    wait_until(TIMEOUT, "the log evicts cookies", async || {
        let kept = producer.metrics().await?.count("producer_log_cookies", &[]);
        Ok((1..30_000).contains(&kept))
    })
    .await?;
    drop(Subscription::open(&producer.grpc, from_cursor("node", &hello, 0)).await?);
    drop(CookieStream::open(&producer.grpc, "node").await?);

    let samples = producer.metrics().await?;
    for outcome in ["fresh", "resumed", "new_epoch", "resumed_with_gap"] {
        let count = |call| samples.count(RESUMES, &[("call", call), ("outcome", outcome)]);
        assert_eq!(count("subscribe"), 1, "{outcome}");
        assert_eq!(
            count("get_cookies"),
            u64::from(outcome == "fresh"),
            "{outcome}"
        );
    }
    assert_eq!(node_metric(&samples, names::STREAMS), 4);

    let future = from_cursor("node", &hello, u64::MAX);
    ensure!(Subscription::open(&producer.grpc, future).await.is_err());
    let samples = producer.metrics().await?;
    let rejected = |code| samples.count("producer_streams_refused_total", &[("code", code)]);
    assert_eq!(rejected("invalid_argument"), 1);
    assert_eq!(rejected("resource_exhausted"), 0);
    Ok(())
}

#[tokio::test]
async fn consumer_exports_the_state_of_each_producer() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--id", "one"]).await?;
    producer.accept_load(1, 1_000).await?;
    let consumer = Consumer::start(
        &dir,
        "node",
        &[&producer],
        &embedded(&dir.path().join("store")),
        &[],
    )
    .await?;
    consumer.wait_settled(1_000).await?;
    let one = [("producer", "one")];
    wait_until(TIMEOUT, "every cookie is durable", async || {
        let lag = consumer.metrics().await?;
        Ok(lag.sum("consumer_producer_lag_cookies", &one) == Some(0.0))
    })
    .await?;
    let samples = consumer.metrics().await?;
    let of_one = |name| samples.sum(name, &one);
    assert_eq!(of_one("consumer_producer_connected"), Some(1.0));
    assert_eq!(samples.count("consumer_cursor_sequence", &one), 1_000);
    let skew = of_one("consumer_clock_skew_seconds");
    ensure!(
        skew.is_some_and(|skew| skew > 0.0),
        "both use one clock, so the skew is the duration of a call: {skew:?}"
    );
    drop(producer);
    wait_until(TIMEOUT, "the disconnect is counted", async || {
        let samples = consumer.metrics().await?;
        Ok(samples.sum("consumer_producer_connected", &one) == Some(0.0))
    })
    .await
}
