//! Tests that consumers recover from the archive what their streams did not deliver, and that the live path does not depend on it.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use async_nats::jetstream::stream::{Config, Source};
use bytes::Bytes;
use proto::{archive::Events, wire::StreamMessage};
use serde_json::json;
use tempfile::TempDir;
use testkit::{nats, programs::ServerProcess, scrape::Samples};

use crate::{
    archive::{STREAM, archive_url, context, create_stream, stream_config, wait_archived},
    harness::{
        Consumer, Producer, TIMEOUT, embedded, numbered_contents, numbered_cookie, wait_logged,
        wait_until,
    },
};

/// A log of this size has evicted most of 100,000 cookies.
const SMALL_LOG: [&str; 2] = ["--log-bytes", "1MiB"];

/// Missing, recovered and recovering cookies.
fn counts(metrics: &Samples) -> [u64; 3] {
    let names = [
        "missing_cookies_total",
        "recovered_cookies_total",
        "recovering_cookies",
    ];
    names.map(|name| metrics.count(&*format!("consumer_archive_{name}"), &[]))
}

/// Waits until all holes are closed; returns the number of recovered cookies.
async fn wait_recovered(consumer: &Consumer) -> Result<u64> {
    wait_until(TIMEOUT, "holes are closed", async || {
        let [missing, _, recovering] = counts(&consumer.metrics().await?);
        Ok(missing > 0 && recovering == 0)
    })
    .await?;
    Ok(counts(&consumer.metrics().await?)[1])
}

/// Sends numbered cookies.
async fn accept(producer: &Producer, numbers: RangeInclusive<u64>) -> Result<()> {
    let (mut first, last) = numbers.into_inner();
    while first <= last {
        let end = last.min(first + 499);
        producer.accept_numbers(first..=end).await?;
        first = end + 1;
    }
    Ok(())
}

const COPY: &str = "COPY";

/// A stream that copies the archive.
fn copy_config() -> Config {
    let source = Source {
        name: STREAM.to_owned(),
        ..Source::default()
    };
    Config {
        name: COPY.to_owned(),
        subjects: Vec::new(),
        sources: Some(vec![source]),
        ..stream_config()
    }
}

/// An archive, a copy of it, and a producer that has evicted most of the cookies 101 to 100,000, which its only consumer missed.
struct Missed {
    nats: ServerProcess,
    producer: Producer,
    /// Has exited.
    consumer: Consumer,
}

impl Missed {
    async fn start(dir: &TempDir) -> Result<Self> {
        Self::start_with(dir, STREAM).await
    }

    /// The consumer reads this stream, the archive or its copy.
    async fn start_with(dir: &TempDir, read: &str) -> Result<Self> {
        let nats = nats::start(dir.path()).await?;
        create_stream(&nats.uri(), stream_config()).await?;
        create_stream(&nats.uri(), copy_config()).await?;
        let archive = ["--archive", &archive_url(&nats)];
        let producer = Producer::start(dir, &[SMALL_LOG, archive].concat()).await?;
        let store = embedded(&dir.path().join("store"));
        let archive = ["--archive", &format!("{}/{read}", nats.uri())];
        let mut consumer = Consumer::start(dir, "node", &[&producer], &store, &archive).await?;
        consumer.wait_ready_with_state("current").await?;
        accept(&producer, 1..=100).await?;
        consumer.wait_written(100).await?;
        consumer.process.kill()?;
        accept(&producer, 101..=100_000).await?;
        ensure!(wait_archived(&producer).await? == 100_000);
        Ok(Self {
            nats,
            producer,
            consumer,
        })
    }
}

#[tokio::test]
async fn evicted_cookies_are_recovered_from_the_archive() -> Result<()> {
    let dir = TempDir::new()?;
    let Missed {
        nats: _nats,
        producer,
        mut consumer,
    } = Missed::start(&dir).await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    accept(&producer, 100_001..=100_100).await?;
    consumer
        .wait_lookups(&numbered_contents(1..=100_100))
        .await?;
    let recovered = wait_recovered(&consumer).await?;
    assert!(recovered > 50_000, "{recovered}");
    assert_eq!(consumer.lost().await?, 0);
    wait_logged(&consumer.process, "all its cookies are recovered").await?;

    // The cursor was held before the hole, and has passed it: a restart recovers nothing.
    consumer.wait_settled(100_000).await?;
    consumer.process.kill()?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    accept(&producer, 100_101..=100_101).await?;
    let (user, dsp, buyer) = numbered_cookie(100_101);
    let found = json!({dsp.to_string(): buyer});
    consumer.wait_lookup(&user, found).await?;
    assert_eq!(counts(&consumer.metrics().await?), [0; 3]);
    Ok(())
}

#[tokio::test]
async fn cookies_are_recovered_from_a_copy_of_the_archive() -> Result<()> {
    let dir = TempDir::new()?;
    let mut missed = Missed::start_with(&dir, COPY).await?;
    missed.consumer.process.restart()?;
    missed.consumer.wait_ready().await?;
    let consumer = &mut missed.consumer;
    consumer
        .wait_lookups(&numbered_contents(1..=100_000))
        .await?;
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

#[tokio::test]
async fn what_a_recreated_archive_lacks_is_lost_and_later_cookies_are_recovered() -> Result<()> {
    let dir = TempDir::new()?;
    let Missed {
        nats,
        producer,
        mut consumer,
    } = Missed::start(&dir).await?;
    let context = context(&nats.uri()).await?;
    context.delete_stream(STREAM).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    accept(&producer, 100_001..=200_000).await?;
    wait_archived(&producer).await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer
        .wait_lookups(&numbered_contents(100_001..=200_000))
        .await?;
    assert!(wait_recovered(&consumer).await? > 50_000);
    let reason = ("reason", "archive_expired");
    let metrics = consumer.metrics().await?;
    let expired = metrics.count("consumer_archive_lost_cookies_total", &[reason]);
    assert_eq!([expired, consumer.lost().await?], [99_900; 2]);
    Ok(())
}

#[tokio::test]
async fn consumer_killed_during_a_recovery_recovers_the_hole_again() -> Result<()> {
    let dir = TempDir::new()?;
    let Missed {
        mut nats,
        producer,
        mut consumer,
    } = Missed::start(&dir).await?;
    // The hole stays open, because the archive does not respond.
    nats.pause()?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    accept(&producer, 100_001..=100_100).await?;
    consumer
        .wait_lookups(&numbered_contents(100_001..=100_100))
        .await?;
    let [missing, recovered, recovering] = counts(&consumer.metrics().await?);
    ensure!(missing > 50_000 && recovering == missing && recovered == 0);
    assert_eq!(consumer.lost().await?, 0);
    consumer.process.kill()?;
    nats.resume()?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    consumer
        .wait_lookups(&numbered_contents(1..=100_100))
        .await?;
    // Meanwhile, the log may have evicted more.
    assert!(wait_recovered(&consumer).await? >= missing);
    assert_eq!(consumer.lost().await?, 0);
    Ok(())
}

/// An archive with all cookies of a producer, of which the consumer, which has exited, has the first 100.
async fn killed_producer(dir: &TempDir) -> Result<(ServerProcess, Producer, Consumer)> {
    let nats = nats::start(dir.path()).await?;
    create_stream(&nats.uri(), stream_config()).await?;
    let archive = ["--archive", &archive_url(&nats)];
    let mut producer = Producer::start(dir, &archive).await?;
    let store = embedded(&dir.path().join("store"));
    let mut consumer = Consumer::start(dir, "node", &[&producer], &store, &archive).await?;
    accept(&producer, 1..=100).await?;
    consumer.wait_written(100).await?;
    consumer.process.kill()?;
    accept(&producer, 101..=2_000).await?;
    ensure!(wait_archived(&producer).await? == 2_000);
    producer.process.kill()?;
    Ok((nats, producer, consumer))
}

#[tokio::test]
async fn undelivered_cookies_of_a_killed_producer_are_recovered_after_its_restart() -> Result<()> {
    let dir = TempDir::new()?;
    let (_nats, mut producer, mut consumer) = killed_producer(&dir).await?;
    // The consumer also misses the second epoch.
    producer.process.restart()?;
    producer.wait_ready().await?;
    accept(&producer, 2_001..=3_000).await?;
    ensure!(wait_archived(&producer).await? == 1_000);
    producer.process.kill()?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    accept(&producer, 3_001..=3_100).await?;
    consumer.wait_lookups(&numbered_contents(1..=3_100)).await?;
    wait_logged(&consumer.process, "hole closed").await?;
    let metrics = consumer.metrics().await?;
    assert_eq!(counts(&metrics), [2_900, 2_900, 0]);
    assert_eq!(consumer.lost().await?, 0);
    // The bounds of two killed epochs, without what was recovered.
    let bound = metrics.count("consumer_uncertain_loss_cookies_total", &[]);
    assert!(bound <= 2 * 1024, "{bound}");
    Ok(())
}

#[tokio::test]
async fn undelivered_cookies_of_a_producer_that_does_not_return_are_recovered() -> Result<()> {
    let dir = TempDir::new()?;
    let (_nats, producer, mut consumer) = killed_producer(&dir).await?;
    consumer.process.restart()?;
    wait_logged(&consumer.process, "producer is absent").await?;
    consumer.wait_lookups(&numbered_contents(1..=2_000)).await?;
    wait_until(TIMEOUT, "the cursor is durable", async || {
        let metrics = consumer.metrics().await?;
        Ok(metrics.count("consumer_cursor_sequence", &[]) == 2_000)
    })
    .await?;
    assert_eq!(counts(&consumer.metrics().await?), [1_900, 1_900, 0]);
    drop(producer);
    Ok(())
}

/// Whether the events of a message are before this sequence number.
fn begins_before(payload: &Bytes, number: u64) -> bool {
    let chunks = Events::new(payload.clone()).filter_map(|event| match event {
        Ok(StreamMessage::Chunk(chunk)) => Some(chunk.header().last_sequence().0),
        _ => None,
    });
    chunks.max().unwrap_or_default() < number
}

#[tokio::test]
async fn cookies_that_the_archive_has_removed_are_lost_with_a_reason() -> Result<()> {
    let dir = TempDir::new()?;
    let Missed {
        nats,
        producer: _producer,
        mut consumer,
    } = Missed::start(&dir).await?;
    let stream = context(&nats.uri()).await?.get_stream("COOKIES").await?;
    let mut kept = 1;
    while begins_before(&stream.get_raw_message(kept).await?.payload, 50_000) {
        kept += 1;
    }
    stream.purge().sequence(kept).await?;
    consumer.process.restart()?;
    consumer.wait_ready().await?;
    let recovered = wait_recovered(&consumer).await?;
    let metrics = consumer.metrics().await?;
    let expired = metrics.count("consumer_lost_total", &[("reason", "archive_expired")]);
    let [missing, ..] = counts(&metrics);
    ensure!(
        expired > 10_000 && recovered > 10_000 && expired + recovered == missing,
        "{expired} + {recovered} of {missing}"
    );
    assert_eq!(consumer.lost().await?, expired);
    wait_logged(&consumer.process, "some of its cookies are lost").await
}

/// A server that requires a user, whose permissions are those of the test.
const ACCOUNTS: &str = r#"
authorization {
  users: [
    { user: admin, password: admin }
    # The documented permissions.
    { user: reader, password: reader, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.COOKIES", "$JS.API.DIRECT.GET.COOKIES",
        "$JS.API.CONSUMER.CREATE.COOKIES", "$JS.API.CONSUMER.MSG.NEXT.COOKIES.>",
        "$JS.API.CONSUMER.DELETE.COOKIES.>"
      ], subscribe: ["_INBOX.>"]
    } }
    { user: nobody, password: nobody, permissions: { publish: ["nothing"] } }
  ]
}
"#;

#[tokio::test]
async fn unusable_archive_does_not_affect_the_live_path() -> Result<()> {
    let dir = TempDir::new()?;
    let nats = nats::start_with(dir.path(), ACCOUNTS).await?;
    let url = |user: &str| format!("nats://{user}@{}", nats.address);
    let admin = url("admin:admin");
    create_stream(&admin, stream_config()).await?;
    let indirect = Config {
        name: "INDIRECT".to_owned(),
        subjects: vec!["other.>".to_owned()],
        allow_direct: false,
        ..stream_config()
    };
    create_stream(&admin, indirect).await?;
    let producer = Producer::start(&dir, &[]).await?;
    for (number, (user, stream, state)) in [
        ("reader:reader", "COOKIES", "current"),
        (
            "reader:wrong",
            "COOKIES",
            "refused: the NATS server rejects the credentials",
        ),
        ("admin:admin", "NONE", "refused: stream NONE: "),
        (
            "admin:admin",
            "INDIRECT",
            "refused: `allow_direct` is not set",
        ),
        (
            "nobody:nobody",
            "COOKIES",
            "refused: cannot read stream COOKIES: ",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let archive = format!("{}/{stream}", url(user));
        let name = format!("node-{number}");
        let store = embedded(&dir.path().join(&name));
        let flags = ["--archive", &archive];
        let consumer = Consumer::start(&dir, &name, &[&producer], &store, &flags).await?;
        consumer.wait_ready_with_state(state).await?;
        let (user, buyer) = (format!("user-{number}"), format!("buyer-{number}"));
        producer.accept(&user, 17, &buyer).await?;
        consumer.wait_lookup(&user, json!({"17": buyer})).await?;
        let log = consumer.process.last_lines(usize::MAX);
        ensure!(!log.contains("wrong") && !log.contains("ERROR"), "{log}");
    }
    Ok(())
}
