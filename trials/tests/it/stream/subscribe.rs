//! Tests of the wire protocol of `Subscribe`: where a stream starts, the order of its messages, and how it ends.

use std::num::NonZeroUsize;

use anyhow::{Context, Result, ensure};
use bench::{report::ReportArgs, subscribe};
use proto::v1::{Cursor, GapReason, ResumeOutcome, SubscribeRequest};
use runtime::connect::credentials::SecurityArgs;
use tempfile::TempDir;
use testkit::scrape::names;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::{
    harness::{Producer, TIMEOUT, numbered_cookie, wait_until, within_timeout},
    stream_client::{ReadResult, Subscription, from_cursor, from_newest, from_oldest},
};

/// Checks that a stream received the cookies of [`numbered_cookie`] in order, from number `first`.
fn check_numbers(stream: &Subscription, first: u64) -> Result<()> {
    for (number, cookie) in (first..).zip(&stream.cookies) {
        let (user, dsp, buyer) = numbered_cookie(number);
        ensure!(
            (&cookie.user_id, cookie.dsp_id, &cookie.buyer_uid) == (&user, dsp, &buyer),
            "{cookie:?} instead of number {number}"
        );
    }
    Ok(())
}

/// Metrics of a subscriber: delivered, lost, lag.
async fn counts(producer: &Producer, name: &str) -> Result<[u64; 3]> {
    let metrics = producer.metrics().await?;
    let labels = [("subscriber", name), ("call", "subscribe")];
    Ok([names::DELIVERED, names::SUBSCRIBER_LOST, names::LAG]
        .map(|metric| metrics.count(metric, &labels)))
}

#[tokio::test]
async fn stream_resumes_exactly_after_a_cursor_inside_a_chunk() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--chunk-age", "100ms"]).await?;
    producer.accept_numbers(1..=20).await?;
    producer.accept_numbers(21..=40).await?;
    let mut all = Subscription::open(&producer.grpc, from_oldest("all")).await?;
    assert_eq!(all.hello.outcome(), ResumeOutcome::Fresh);
    all.read_to(40).await?;
    check_numbers(&all, 1)?;
    ensure!(
        all.chunks.iter().any(|(_, count)| *count > 2),
        "every chunk has less than three cookies: {:?}",
        all.chunks
    );
    for sequence in 0..=40 {
        let request = from_cursor("resumed", &all.hello, sequence);
        let mut stream = Subscription::open(&producer.grpc, request).await?;
        let hello = &stream.hello;
        assert_eq!(hello.outcome(), ResumeOutcome::Resumed);
        assert_eq!(hello.first_sequence, sequence + 1);
        assert_eq!(
            (hello.oldest_sequence, hello.next_sequence <= 41),
            (1, true)
        );
        stream.read_to(40).await?;
        check_numbers(&stream, sequence + 1)?;
        assert_eq!(stream.cookies.len() as u64, 40 - sequence);
    }
    Ok(())
}

#[tokio::test]
async fn stream_starts_at_the_oldest_or_the_newest_cookie() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    // In an empty log, both are the same. The first sequence number of an epoch is 1.
    for request in [from_oldest("a"), from_newest("b")] {
        let stream = Subscription::open(&producer.grpc, request).await?;
        let hello = stream.hello;
        assert_eq!(
            (
                hello.oldest_sequence,
                hello.next_sequence,
                hello.first_sequence
            ),
            (1, 1, 1)
        );
    }
    producer.accept_numbers(1..=5).await?;
    let mut oldest = Subscription::open(&producer.grpc, from_oldest("oldest")).await?;
    oldest.read_to(5).await?;
    let mut newest = Subscription::open(&producer.grpc, from_newest("newest")).await?;
    assert_eq!(newest.hello.first_sequence, 6);
    // An idle stream sends heartbeats with its position.
    while newest.heartbeats < 2 {
        ensure!(matches!(newest.read().await?, ReadResult::Event), "ended");
    }
    producer.accept_numbers(6..=9).await?;
    for (stream, first) in [(&mut oldest, 1), (&mut newest, 6)] {
        stream.read_to(9).await?;
        check_numbers(stream, first)?;
    }
    Ok(())
}

#[tokio::test]
async fn invalid_subscribe_request_is_rejected() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    producer.accept_numbers(1..=5).await?;
    let mut known = Subscription::open(&producer.grpc, from_oldest("known")).await?;
    known.read_to(5).await?;
    let hello = known.hello.clone();
    let cursor = |sequence| from_cursor("x", &hello, sequence);
    let many = SubscribeRequest {
        cursors: vec![Cursor::default(); 1025],
        ..from_oldest("x")
    };
    for (what, request) in [
        ("cursor after the newest", cursor(6)),
        ("cursor at the end of time", cursor(u64::MAX)),
        ("empty name", from_oldest("")),
        ("long name", from_oldest(&"x".repeat(257))),
        ("control character", from_oldest("a\nb")),
        ("cursors", many),
    ] {
        let status = Subscription::expect_rejection(&producer.grpc, request).await?;
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status}");
    }
    // A rejected request does not close the stream of the same name.
    let status =
        Subscription::expect_rejection(&producer.grpc, from_cursor("known", &hello, 6)).await?;
    assert_eq!(status.code(), Code::InvalidArgument);
    producer.accept_numbers(6..=6).await?;
    known.read_to(6).await?;
    // A cursor at the newest sequence number is valid.
    let stream = Subscription::open(&producer.grpc, cursor(6)).await?;
    assert_eq!(stream.hello.first_sequence, 7);
    Ok(())
}

#[tokio::test]
async fn number_of_subscribers_is_limited() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--subscribers", "2"]).await?;
    let _one = Subscription::open(&producer.grpc, from_newest("one")).await?;
    let _two = Subscription::open(&producer.grpc, from_newest("two")).await?;
    let status = Subscription::expect_rejection(&producer.grpc, from_newest("three")).await?;
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    // A known subscriber can reconnect.
    Subscription::open(&producer.grpc, from_newest("two")).await?;
    Ok(())
}

#[tokio::test]
async fn newer_stream_of_a_subscriber_closes_the_older() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &[]).await?;
    let mut older = Subscription::open(&producer.grpc, from_newest("same")).await?;
    producer.accept_numbers(1..=3).await?;
    older.read_to(3).await?;
    let mut newer =
        Subscription::open(&producer.grpc, from_cursor("same", &older.hello, 3)).await?;
    let (goodbye, status) = older.read_to_end().await?;
    assert_eq!((goodbye, status.code()), (None, Code::Aborted), "{status}");
    producer.accept_numbers(4..=6).await?;
    newer.read_to(6).await?;
    check_numbers(&newer, 4)?;
    assert_eq!(older.cookies.len(), 3);
    Ok(())
}

#[tokio::test]
async fn cursor_of_another_epoch_starts_at_the_first_sequence() -> Result<()> {
    let dir = TempDir::new()?;
    let mut producer = Producer::start(&dir, &[]).await?;
    producer.accept_numbers(1..=9).await?;
    let mut before = Subscription::open(&producer.grpc, from_oldest("node")).await?;
    before.read_to(9).await?;
    producer.process.kill()?;
    producer.process.restart()?;
    producer.wait_ready().await?;
    producer.accept_numbers(1..=3).await?;

    let request = from_cursor("node", &before.hello, 9);
    let mut after = Subscription::open(&producer.grpc, request).await?;
    assert_eq!(after.hello.outcome(), ResumeOutcome::NewEpoch);
    assert_eq!(after.hello.producer_id, before.hello.producer_id);
    assert!(after.hello.epoch > before.hello.epoch);
    assert_eq!(after.hello.first_sequence, 1);
    after.read_to(3).await?;
    check_numbers(&after, 1)?;

    // A cursor of another producer is ignored.
    let mut foreign = from_cursor("other", &after.hello, 1);
    foreign.cursors[0].producer_id.push('x');
    let stream = Subscription::open(&producer.grpc, foreign).await?;
    assert_eq!(stream.hello.outcome(), ResumeOutcome::Fresh);
    Ok(())
}

#[tokio::test]
async fn position_of_a_subscriber_is_kept_for_its_retention() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--rewind-bytes", "0"]).await?;
    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    producer.accept_numbers(1..=5).await?;
    stream.read_to(5).await?;
    drop(stream);
    producer.accept_numbers(6..=9).await?;

    let mut stream = Subscription::open(&producer.grpc, from_newest("node")).await?;
    assert_eq!(stream.hello.outcome(), ResumeOutcome::Resumed);
    assert_eq!(stream.hello.first_sequence, 6);
    stream.read_to(9).await?;
    check_numbers(&stream, 6)?;

    let short_retention = Producer::start(&dir, &["--subscriber-retention", "1ms"]).await?;
    drop(Subscription::open(&short_retention.grpc, from_newest("node")).await?);
    wait_until(TIMEOUT, "the position is removed", async || {
        let stream = Subscription::open(&short_retention.grpc, from_newest("node")).await?;
        Ok(stream.hello.outcome() == ResumeOutcome::Fresh)
    })
    .await
}

/// More cookies than fit into a log of 1 MiB, the minimum of `--log-bytes`.
const MORE_THAN_THE_LOG: u64 = 30_000;

#[tokio::test]
async fn cursor_older_than_the_log_receives_an_exact_gap() -> Result<()> {
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--log-bytes", "1MiB"]).await?;
    let hello = Subscription::open(&producer.grpc, from_newest("first")).await?;
    let hello = hello.hello.clone();
    let traffic = producer.accept_load(1, MORE_THAN_THE_LOG).await?;

    let request = from_cursor("late", &hello, 100);
    let mut late = Subscription::open(&producer.grpc, request).await?;
    assert_eq!(late.hello.outcome(), ResumeOutcome::ResumedWithGap);
    assert_eq!(late.hello.first_sequence, 101);
    late.read_to(MORE_THAN_THE_LOG).await?;
    let [gap] = &late.gaps[..] else {
        panic!("expected one gap, got {:?}", late.gaps)
    };
    assert_eq!(gap.first_sequence, 101);
    assert_eq!(gap.reason(), GapReason::Evicted);
    let received = late.cookies.len() as u64;
    assert_eq!(late.lost() + received, MORE_THAN_THE_LOG - 100);
    for (number, cookie) in (gap.last_sequence..).zip(&late.cookies) {
        // Sequence number n is the cookie with number n - 1.
        assert_eq!(cookie.user_id, traffic.cookie(0, number).user_id());
    }
    assert_eq!(counts(&producer, "late").await?, [received, late.lost(), 0]);
    assert_eq!(producer.appended().await?, MORE_THAN_THE_LOG);
    Ok(())
}

#[tokio::test]
async fn stalled_reader_receives_an_exact_gap_and_affects_no_other_reader() -> Result<()> {
    const COOKIES: u64 = 40_000;
    let dir = TempDir::new()?;
    let producer = Producer::start(&dir, &["--queue-cookies", "12000"]).await?;
    let mut stalled =
        Subscription::open_with_small_windows(&producer.grpc, from_newest("stalled")).await?;
    let args = subscribe::SubscribeArgs {
        producer: producer.grpc.clone(),
        streams: NonZeroUsize::new(5).context("five")?,
        duration: None,
        requests: Some(COOKIES),
        call: subscribe::Call::Subscribe,
        security: SecurityArgs::default(),
        fan_out: Vec::new(),
        rate: None,
        report: ReportArgs::default(),
    };
    let stop = CancellationToken::new();
    let (opened, is_open) = tokio::sync::oneshot::channel();
    let reading = subscribe::run(&args, &stop, || {
        // Sending fails only if the test has failed.
        opened.send(()).ok();
    });
    let sending = async {
        is_open.await?;
        // Small steps, because the readers have the same lag limit and must keep up in a debug build.
        for step in 0..10 {
            producer.accept_load(step, COOKIES / 10).await?;
            wait_until(TIMEOUT, "the five readers keep up", async || {
                let metrics = producer.metrics().await?;
                let lag = |name: &str| metrics.count(names::LAG, &[("subscriber", name)]);
                Ok(metrics.count(names::LAG, &[]) == lag("stalled"))
            })
            .await?;
        }
        anyhow::Ok(())
    };
    let (read, sent) = tokio::join!(
        within_timeout("the five readers receive every cookie", reading),
        sending
    );
    sent?;
    let read = read??;
    assert!(
        read.report().failures.is_empty(),
        "{}",
        read.report().summary()
    );
    assert_eq!((read.total.received, read.total.lost), (5 * COOKIES, 0));

    let [delivered, lost, lag] = counts(&producer, "stalled").await?;
    assert_eq!(delivered + lost + lag, COOKIES);
    assert!(lag > 12_000, "the reader is within its lag limit: {lag}");
    stalled.read_to(COOKIES).await?;
    assert!(stalled.lost() > 0);
    for gap in &stalled.gaps {
        assert_eq!(gap.reason(), GapReason::LagLimit);
    }
    let received = stalled.cookies.len() as u64;
    assert_eq!(stalled.lost() + received, COOKIES);
    assert_eq!(
        counts(&producer, "stalled").await?,
        [received, stalled.lost(), 0]
    );
    Ok(())
}
