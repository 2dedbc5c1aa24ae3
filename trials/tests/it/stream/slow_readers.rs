//! Tests of slow readers: the bytes in flight on their connections are counted and limited. The producer disconnects the slowest
//! readers, which later resume from their cursors. Other readers are not affected.

use std::time::Duration;

use anyhow::{Result, ensure};
use proto::v1::Cookie;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::scrape::{Samples, names};
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
    stream_client::{ReadResult, Subscription, from_cursor, from_newest},
};

const IN_FLIGHT: &str = "producer_subscriber_in_flight_bytes";
const ALL_IN_FLIGHT: &str = "producer_in_flight_bytes";
const IN_FLIGHT_LIMIT: &str = "producer_in_flight_limit_bytes";
const DISCONNECTS: &str = "producer_subscriber_disconnects_total";

fn in_flight(metrics: &Samples, subscriber: &str) -> u64 {
    metrics.count(IN_FLIGHT, &[("subscriber", subscriber)])
}

fn disconnects(metrics: &Samples, subscriber: &str) -> u64 {
    metrics.count(DISCONNECTS, &[("subscriber", subscriber)])
}

/// Reads up to sequence number `sequence`, and resumes from the cursor after each disconnect. Returns the number of disconnects and
/// the cookies.
async fn read_resuming(
    producer: &Producer,
    name: &str,
    mut stream: Subscription,
    sequence: u64,
) -> Result<(u64, Vec<Cookie>)> {
    let (mut disconnected, mut cookies) = (0, Vec::new());
    loop {
        while stream.next <= sequence {
            if let ReadResult::End(status) = stream.read().await? {
                ensure!(status.code() == Code::ResourceExhausted, "{status}");
                disconnected += 1;
                break;
            }
        }
        ensure!(stream.lost() == 0, "{name} lost {} cookies", stream.lost());
        cookies.append(&mut stream.cookies);
        if stream.next > sequence {
            return Ok((disconnected, cookies));
        }
        let (hello, read) = (stream.hello.clone(), stream.next - 1);
        stream = loop {
            let cursor = from_cursor(name, &hello, read);
            match Subscription::open_with_small_windows(&producer.grpc, cursor).await {
                Ok(stream) => break stream,
                // Disconnected before the response was sent.
                Err(error) if is_disconnect(&error) => disconnected += 1,
                Err(error) => return Err(error),
            }
            ensure!(disconnected < 100, "{name} is rejected 100 times");
            // Other readers count as stalled only after a second, so a client must not retry immediately.
            sleep(Duration::from_millis(50)).await;
        };
    }
}

fn is_disconnect(error: &anyhow::Error) -> bool {
    let status = error.downcast_ref::<Status>();
    status.is_some_and(|status| status.code() == Code::ResourceExhausted)
}

#[tokio::test]
async fn slowest_readers_are_disconnected_at_the_limit_and_no_reader_loses_a_cookie() -> Result<()>
{
    const COOKIES: u64 = 5_000;
    const STALLED: usize = 50;
    const BOUND_BYTES: u64 = 450 << 10;
    let dir = TempDir::new()?;
    // A reader with a full window has one chunk in flight. Chunks are sealed by size here: smaller chunks might all fit into the limit.
    let mut flags = vec!["--in-flight-bytes", "450KiB"];
    flags.extend(["--chunk-bytes", "16KiB", "--chunk-age", "1s"]);
    let producer = Producer::start(&dir, &flags).await?;
    let mut stalled = Vec::new();
    for number in 0..STALLED {
        let name = format!("stalled-{number}");
        let stream =
            Subscription::open_with_small_windows(&producer.grpc, from_newest(&name)).await?;
        stalled.push((name, stream));
    }
    let reading = Subscription::open(&producer.grpc, from_newest("reading")).await?;
    producer.accept_load(1, COOKIES).await?;
    // Until other readers have stalled for a second, this reader may have the most bytes in flight.
    let (mut observed, read) = read_resuming(&producer, "reading", reading, COOKIES).await?;

    wait_until(
        TIMEOUT,
        "the bytes in flight are within the limit",
        async || {
            let metrics = producer.metrics().await?;
            Ok(metrics.count(DISCONNECTS, &[]) > 0
                && metrics.count(ALL_IN_FLIGHT, &[]) <= BOUND_BYTES)
        },
    )
    .await?;
    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(IN_FLIGHT_LIMIT, &[]), BOUND_BYTES);

    for (name, stream) in stalled {
        let (disconnected, cookies) = read_resuming(&producer, &name, stream, COOKIES).await?;
        ensure!(cookies == read, "{name} received other cookies");
        observed += disconnected;
    }
    let counted = producer.metrics().await?.count(DISCONNECTS, &[]);
    ensure!(
        (1..=counted).contains(&observed),
        "{observed} disconnects observed, {counted} counted"
    );
    wait_until(TIMEOUT, "no byte is in flight", async || {
        let metrics = producer.metrics().await?;
        Ok(metrics.count(ALL_IN_FLIGHT, &[]) == 0 && metrics.count(IN_FLIGHT, &[]) == 0)
    })
    .await
}

#[tokio::test]
async fn paused_consumer_is_disconnected_and_resumes_by_its_cursor() -> Result<()> {
    const STEP: u64 = 20_000;
    let sent = |metrics: &Samples| metrics.count(names::SENT_BYTES, &[("subscriber", "node")]);
    let dir = TempDir::new()?;
    // The limit allows the consumer without the other readers (up to 256 KiB and three chunks), or these without it (two chunks each).
    let flags = ["--in-flight-bytes", "450KiB", "--chunk-age", "100ms"];
    let producer = Producer::start(&dir, &flags).await?;
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept_load(0, 1_000).await?;
    consumer.wait_settled(1_000).await?;

    consumer.process.signal(Signal::STOP)?;
    let mut accepted = 1_000;
    // Kernel buffers fill first. The stream is stalled when nothing is sent during a whole step.
    loop {
        let before = sent(&producer.metrics().await?);
        producer.accept_load(accepted, STEP).await?;
        accepted += STEP;
        let metrics = producer.metrics().await?;
        if sent(&metrics) == before && in_flight(&metrics, "node") > 0 {
            break;
        }
        ensure!(accepted < 1_000_000, "the stream never stalls");
    }
    assert_eq!(disconnects(&producer.metrics().await?, "node"), 0);

    // All readers together exceed the limit, and the consumer has the most bytes in flight.
    let mut others = Vec::new();
    for number in 0..3 {
        let request = from_newest(&format!("other-{number}"));
        others.push(Subscription::open_with_small_windows(&producer.grpc, request).await?);
    }
    producer.accept_load(accepted, STEP).await?;
    accepted += STEP;
    wait_until(
        TIMEOUT,
        "the consumer is disconnected and has no bytes in flight",
        async || {
            let metrics = producer.metrics().await?;
            Ok(disconnects(&metrics, "node") == 1 && in_flight(&metrics, "node") == 0)
        },
    )
    .await?;
    // No other reader was disconnected.
    assert_eq!(producer.metrics().await?.count(DISCONNECTS, &[]), 1);
    drop(others);
    wait_until(TIMEOUT, "the others are disconnected", async || {
        Ok(producer.metrics().await?.count(ALL_IN_FLIGHT, &[]) == 0)
    })
    .await?;

    consumer.process.signal(Signal::CONT)?;
    consumer.wait_settled(accepted).await?;
    assert_eq!(consumer.lost().await?, 0);
    assert_eq!(producer.appended().await?, accepted);
    let metrics = producer.metrics().await?;
    let lost = metrics.count(names::SUBSCRIBER_LOST, &[("subscriber", "node")]);
    assert_eq!((lost, disconnects(&metrics, "node")), (0, 1));
    Ok(())
}
