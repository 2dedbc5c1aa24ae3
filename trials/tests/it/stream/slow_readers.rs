//! Readers that stand still: what their connections hold is counted and bounded, the worst are cut off, nobody else
//! feels it, and anyone who was cut off goes on where it stood.

use std::time::Duration;

use anyhow::{Result, ensure};
use bench::scrape::{Samples, names};
use proto::v1::Cookie;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::{
    harness::{Consumer, Producer, TIMEOUT, embedded, wait_until},
    stream_client::{ReadResult, Subscription, from_cursor, from_newest},
};

const IN_FLIGHT: &str = "producer_subscriber_in_flight_bytes";
const ALL_IN_FLIGHT: &str = "producer_in_flight_bytes";
const IN_FLIGHT_LIMIT: &str = "producer_in_flight_limit_bytes";
const CUT: &str = "producer_subscriber_disconnects_total";

fn in_flight(metrics: &Samples, subscriber: &str) -> u64 {
    metrics.count(IN_FLIGHT, &[("subscriber", subscriber)])
}

fn cuts(metrics: &Samples, subscriber: &str) -> u64 {
    metrics.count(CUT, &[("subscriber", subscriber)])
}

/// Reads to `sequence`, and goes on by its cursor as often as it is cut off; how often that was, and what it read.
async fn read_resuming(
    producer: &Producer,
    name: &str,
    mut stream: Subscription,
    sequence: u64,
) -> Result<(u64, Vec<Cookie>)> {
    let (mut cut, mut cookies) = (0, Vec::new());
    loop {
        while stream.next <= sequence {
            if let ReadResult::End(status) = stream.read().await? {
                ensure!(status.code() == Code::ResourceExhausted, "{status}");
                cut += 1;
                break;
            }
        }
        ensure!(stream.lost() == 0, "{name} has lost {}", stream.lost());
        cookies.append(&mut stream.cookies);
        if stream.next > sequence {
            return Ok((cut, cookies));
        }
        let (hello, read) = (stream.hello.clone(), stream.next - 1);
        stream = loop {
            let cursor = from_cursor(name, &hello, read);
            match Subscription::open_with_small_windows(&producer.grpc, cursor).await {
                Ok(stream) => break stream,
                // Cut off before its answer was on its way.
                Err(error) if is_cut(&error) => cut += 1,
                Err(error) => return Err(error),
            }
            ensure!(cut < 100, "{name} is never let in");
            // The others are worse only when they have stood still for a second; a client does not ask at once again.
            sleep(Duration::from_millis(50)).await;
        };
    }
}

fn is_cut(error: &anyhow::Error) -> bool {
    let status = error.downcast_ref::<Status>();
    status.is_some_and(|status| status.code() == Code::ResourceExhausted)
}

#[tokio::test]
async fn slowest_readers_are_disconnected_at_the_limit_and_no_reader_loses_a_cookie() -> Result<()>
{
    const COOKIES: u64 = 5_000;
    const STILL: usize = 50;
    const BOUND_BYTES: u64 = 450 << 10;
    let dir = TempDir::new()?;
    // Whose window is full holds one chunk. Chunks are sealed by size and not by age, however slowly the load arrives:
    // smaller ones might all be within the bound.
    let mut flags = vec!["--in-flight-bytes", "450KiB"];
    flags.extend(["--chunk-bytes", "16KiB", "--chunk-age", "1s"]);
    let producer = Producer::start(&dir, &flags).await?;
    let mut still = Vec::new();
    for number in 0..STILL {
        let name = format!("still-{number}");
        let stream =
            Subscription::open_with_small_windows(&producer.grpc, from_newest(&name)).await?;
        still.push((name, stream));
    }
    let reading = Subscription::open(&producer.grpc, from_newest("reading")).await?;
    producer.accept_load(1, COOKIES).await?;
    // For as long as nobody has stood still for a second, it may itself hold most.
    let (mut seen, read) = read_resuming(&producer, "reading", reading, COOKIES).await?;

    wait_until(TIMEOUT, "what is held is within the bound", async || {
        let metrics = producer.metrics().await?;
        Ok(metrics.count(CUT, &[]) > 0 && metrics.count(ALL_IN_FLIGHT, &[]) <= BOUND_BYTES)
    })
    .await?;
    let metrics = producer.metrics().await?;
    assert_eq!(metrics.count(IN_FLIGHT_LIMIT, &[]), BOUND_BYTES);

    for (name, stream) in still {
        let (cut, cookies) = read_resuming(&producer, &name, stream, COOKIES).await?;
        ensure!(cookies == read, "{name} has read something else");
        seen += cut;
    }
    let counted = producer.metrics().await?.count(CUT, &[]);
    ensure!(
        (1..=counted).contains(&seen),
        "{seen} of {counted} ends were seen"
    );
    wait_until(TIMEOUT, "nothing is held", async || {
        let metrics = producer.metrics().await?;
        Ok(metrics.count(ALL_IN_FLIGHT, &[]) == 0 && metrics.count(IN_FLIGHT, &[]) == 0)
    })
    .await
}

#[tokio::test]
async fn paused_consumer_is_disconnected_and_resumes_by_its_cursor() -> Result<()> {
    const STEP: u64 = 20_000;
    let taken = |metrics: &Samples| metrics.count(names::SENT_BYTES, &[("subscriber", "node")]);
    let dir = TempDir::new()?;
    // The consumer alone is within the bound, 256 KiB and three chunks at most; and so are the others without it, two chunks
    // each.
    let flags = ["--in-flight-bytes", "450KiB", "--chunk-age", "100ms"];
    let producer = Producer::start(&dir, &flags).await?;
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::start(&dir, "node", &[&producer], &store, &[]).await?;
    producer.accept_load(0, 1_000).await?;
    consumer.wait_settled(1_000).await?;

    consumer.process.signal(Signal::STOP)?;
    let mut accepted = 1_000;
    // What the kernels take comes first; it stands still when nothing of a whole step is taken out of the log.
    loop {
        let before = taken(&producer.metrics().await?);
        producer.accept_load(accepted, STEP).await?;
        accepted += STEP;
        let metrics = producer.metrics().await?;
        if taken(&metrics) == before && in_flight(&metrics, "node") > 0 {
            break;
        }
        ensure!(accepted < 1_000_000, "it never stalls");
    }
    assert_eq!(cuts(&producer.metrics().await?, "node"), 0);

    // All together are too much, and the consumer holds most.
    let mut others = Vec::new();
    for number in 0..3 {
        let request = from_newest(&format!("other-{number}"));
        others.push(Subscription::open_with_small_windows(&producer.grpc, request).await?);
    }
    producer.accept_load(accepted, STEP).await?;
    accepted += STEP;
    wait_until(
        TIMEOUT,
        "the consumer is cut off and holds nothing",
        async || {
            let metrics = producer.metrics().await?;
            Ok(cuts(&metrics, "node") == 1 && in_flight(&metrics, "node") == 0)
        },
    )
    .await?;
    // Nobody else was.
    assert_eq!(producer.metrics().await?.count(CUT, &[]), 1);
    drop(others);
    wait_until(TIMEOUT, "the others are gone", async || {
        Ok(producer.metrics().await?.count(ALL_IN_FLIGHT, &[]) == 0)
    })
    .await?;

    consumer.process.signal(Signal::CONT)?;
    consumer.wait_settled(accepted).await?;
    assert_eq!(consumer.lost().await?, 0);
    assert_eq!(producer.appended().await?, accepted);
    let metrics = producer.metrics().await?;
    let lost = metrics.count(names::SUBSCRIBER_LOST, &[("subscriber", "node")]);
    assert_eq!((lost, cuts(&metrics, "node")), (0, 1));
    Ok(())
}
