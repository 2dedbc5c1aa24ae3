//! Tests of the log against a model, and of properties of sealing and reading.

mod accepted;
mod bound;
mod deletions;

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use proptest::prelude::*;
use proto::{
    limits,
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{self, CookieRef, StreamMessage},
};

use super::{AppendBatch, Closed, Config, Delivery, GapReason, Log, Reader, Span};

const CONFIG: Config = Config {
    epoch: Epoch(9),
    bytes_max: 1 << 30,
    chunk_bytes: 4096,
    chunk_age: Duration::from_secs(3600),
    idle_after: Duration::from_secs(3600),
};

fn user(sequence: u64) -> String {
    format!("user-{sequence}")
}

fn append(log: &Log, sequence: u64) -> Result<(), Closed> {
    let mut batch = AppendBatch::default();
    push(&mut batch, sequence);
    log.append(&mut batch)
}

fn push(batch: &mut AppendBatch, sequence: u64) {
    batch.push(&CookieRef {
        user_id: &user(sequence),
        dsp_id: DspId(7),
        buyer_uid: &"b".repeat((sequence % 200) as usize + 1),
        age_micros: 0,
    });
}

/// Seals the open buffer as if it were due.
pub(crate) fn seal(log: &Log) {
    log.seal_due(Instant::now() + 3 * CONFIG.chunk_age);
}

/// The output of a future that is ready immediately; `None` if it is pending.
pub(crate) fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn take(reader: &mut Reader) -> Option<Delivery> {
    now(reader.next())
}

/// The sequence numbers of the cookies in a message, parsed from their user ids.
fn sequences(message: Bytes) -> Vec<u64> {
    let message = message.slice(wire::FRAME_PREFIX_BYTES..);
    let Ok(StreamMessage::Chunk(chunk)) = StreamMessage::decode(message) else {
        panic!("not a chunk");
    };
    assert_eq!(chunk.header().epoch, CONFIG.epoch);
    let sequences: Vec<u64> = chunk
        .records()
        .map(|record| record.unwrap().cookie().unwrap())
        .map(|cookie| cookie.user_id[5..].parse().unwrap())
        .collect();
    assert_eq!(sequences.first(), Some(&chunk.header().first_sequence.0));
    assert_eq!(sequences.last(), Some(&chunk.header().last_sequence().0));
    sequences
}

#[derive(Debug, Clone)]
enum Action {
    Append(u64),
    Seal,
    Take { reader: usize },
    Join { back: u64, until: u64 },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..60_u64).prop_map(Action::Append),
        2 => Just(Action::Seal),
        6 => (0..4_usize).prop_map(|reader| Action::Take { reader }),
        1 => (0..2000_u64, prop_oneof![Just(0), 1..5000_u64, Just(u64::MAX)])
            .prop_map(|(back, until)| Action::Join { back, until }),
    ]
}

/// A reader and its expected state.
struct ModelReader {
    reader: Reader,
    next: u64,
    until: u64,
}

struct Model {
    log: Log,
    queue_cookies_max: u64,
    appended: u64,
    reads: Vec<ModelReader>,
    /// First sequence numbers of the chunks.
    chunks: Vec<u64>,
}

impl Model {
    fn apply(&mut self, action: &Action) {
        match *action {
            Action::Append(count) => {
                let mut batch = AppendBatch::default();
                for _ in 0..count {
                    self.appended += 1;
                    push(&mut batch, self.appended);
                    if batch.is_full() {
                        self.append(&mut batch);
                    }
                }
                self.append(&mut batch);
            }
            Action::Seal => {
                seal(&self.log);
                assert_eq!(self.log.span().next.0, self.appended + 1);
                self.chunks.push(self.appended + 1);
            }
            Action::Join { back, until } => {
                let next = self.log.span().next.0.saturating_sub(back).max(1);
                let (position, until_sequence) = (Sequence(next), Sequence(until));
                let reader = self
                    .log
                    .reader(position, self.queue_cookies_max, until_sequence);
                self.reads.push(ModelReader {
                    reader,
                    next,
                    until,
                });
            }
            Action::Take { reader } => self.take(reader),
        }
    }

    fn append(&mut self, batch: &mut AppendBatch) {
        self.log.append(batch).unwrap();
        self.chunks.push(self.log.span().next.0);
    }

    fn take(&mut self, reader: usize) {
        let Span {
            oldest: Sequence(oldest),
            next: Sequence(next),
        } = self.log.span();
        let Some(read) = self.reads.get_mut(reader) else {
            return;
        };
        let lag = next - read.next;
        if lag <= self.queue_cookies_max {
            read.until = 0;
        }
        let exceeds_lag = lag > self.queue_cookies_max && read.next >= read.until;
        match take(&mut read.reader) {
            None => assert_eq!(lag, 0, "sealed cookies are delivered"),
            Some(Delivery::Chunk { chunk, first }) => {
                assert!(!exceeds_lag, "a reader beyond its maximum lag skips first");
                let received = sequences(chunk.wire_from(first));
                let expected: Vec<u64> = (read.next..read.next + received.len() as u64).collect();
                assert_eq!(received, expected);
                read.next += received.len() as u64;
            }
            Some(Delivery::Gap {
                first,
                last,
                reason,
            }) => {
                assert_eq!(
                    first.0, read.next,
                    "a gap begins at the position of the reader"
                );
                let target = if exceeds_lag {
                    assert_eq!(reason, GapReason::LagLimit);
                    let min = next - self.queue_cookies_max;
                    let range = min.max(oldest)..next;
                    let in_range = |&&sequence: &&u64| range.contains(&sequence);
                    *self.chunks.iter().find(in_range).unwrap_or(&min)
                } else {
                    assert_eq!(reason, GapReason::Evicted);
                    oldest
                };
                assert_eq!(last.0 + 1, target);
                read.next = target;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(read.reader.position().0, read.next);
    }
}

proptest! {
    #[test]
    fn readers_receive_every_sequence_once_or_an_exact_gap(
        actions in prop::collection::vec(action(), 1..120),
        bytes_max in 1_usize..60_000,
        queue_cookies_max in 1_u64..1500,
    ) {
        let log = Log::new(Config { bytes_max, ..CONFIG });
        let mut model = Model { log, queue_cookies_max, appended: 0, reads: Vec::new(), chunks: vec![1] };
        model.apply(&Action::Join { back: 0, until: 0 });
        for action in &actions {
            model.apply(action);
            let stats = model.log.stats();
            prop_assert!(stats.bytes <= bytes_max || stats.chunks == 1);
            prop_assert_eq!(stats.appended, model.appended);
        }
        model.log.close();
        prop_assert_eq!(append(&model.log, 0), Err(Closed));
        for read in &mut model.reads {
            loop {
                match take(&mut read.reader) {
                    Some(Delivery::End { last }) => break prop_assert_eq!(last.0, model.appended),
                    Some(Delivery::Chunk { chunk, first }) => {
                        prop_assert_eq!(first.0, read.next);
                        read.next = chunk.last().0 + 1;
                    }
                    Some(Delivery::Gap { first, last, .. }) => {
                        prop_assert_eq!(first.0, read.next);
                        read.next = last.0 + 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn chunk_is_sealed_when_the_next_cookie_may_not_fit() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    let mut appended = 0;
    while log.stats().sealed.by_size == 0 {
        appended += 1;
        append(&log, appended).unwrap();
    }
    let Some(Delivery::Chunk {
        chunk,
        first: Sequence(1),
    }) = take(&mut reader)
    else {
        panic!("no chunk");
    };
    assert_eq!(chunk.last().0, appended - 1);
    assert!(chunk.wire().len() <= CONFIG.chunk_bytes);
    assert!(chunk.wire().len() > CONFIG.chunk_bytes - 256);
}

#[test]
fn sealed_chunks_are_counted_by_reason() {
    let log = Log::new(CONFIG);
    let reasons = || {
        let stats = log.stats();
        let sealed = [
            stats.sealed.by_size,
            stats.sealed.by_age,
            stats.sealed.by_drain,
        ];
        assert_eq!(sealed.iter().sum::<u64>(), stats.chunks as u64);
        sealed
    };
    append(&log, 1).unwrap();
    log.seal_due(Instant::now() + 3 * CONFIG.chunk_age);
    assert_eq!(reasons(), [0, 1, 0]);
    let mut appended = 1;
    while log.stats().sealed.by_size == 0 {
        appended += 1;
        append(&log, appended).unwrap();
    }
    assert_eq!(reasons(), [1, 1, 0]);
    log.close();
    assert_eq!(reasons(), [1, 1, 1], "the open buffer at the end");
}

#[test]
fn age_at_a_position_is_the_age_of_its_oldest_sealed_cookie() {
    let log = Log::new(CONFIG);
    for cookie in 1..=2 {
        append(&log, cookie).unwrap();
        seal(&log);
    }
    append(&log, 3).unwrap();
    let [first, second, open] = *log.ages([1, 2, 3].map(Sequence)) else {
        panic!("one age per position");
    };
    assert!(first > second && second > Duration::ZERO);
    assert_eq!(open, Duration::ZERO, "no sealed cookie from there on");
}

#[test]
fn full_batch_of_maximum_cookies_fits_the_smallest_chunk() {
    let log = Log::new(CONFIG);
    let mut batch = AppendBatch::default();
    while !batch.is_full() {
        batch.push(&CookieRef {
            user_id: &"u".repeat(limits::USER_ID_BYTES_MAX),
            dsp_id: DspId(u32::MAX),
            buyer_uid: &"b".repeat(limits::BUYER_UID_BYTES_MAX),
            age_micros: 0,
        });
    }
    assert!(batch.encoded().len() + wire::HEADROOM_BYTES <= limits::CHUNK_BYTES_MIN);
    log.append(&mut batch).unwrap();
    assert!(batch.is_empty());
}

#[test]
fn small_chunk_uses_only_the_memory_it_needs() {
    let log = Log::new(Config {
        chunk_bytes: 1 << 20,
        ..CONFIG
    });
    append(&log, 1).unwrap();
    seal(&log);
    assert!(log.stats().bytes < 1024, "{}", log.stats().bytes);
}

#[test]
fn chunk_is_sealed_at_its_age_and_a_small_chunk_at_three_times_its_age() {
    let log = Log::new(CONFIG);
    let after = |ages| Instant::now() + ages * CONFIG.chunk_age;
    append(&log, 1).unwrap();
    assert!(log.seal_due(after(0)).unwrap() <= CONFIG.chunk_age);
    assert_eq!(log.seal_due(after(1)), Some(CONFIG.chunk_age));
    assert_eq!(log.seal_due(after(3)), None);
    assert_eq!(log.span().next, Sequence(2));

    for sequence in 2..=50 {
        append(&log, sequence).unwrap();
    }
    assert!(log.seal_due(after(0)).unwrap() <= CONFIG.chunk_age);
    assert_eq!(log.span().next, Sequence(2));
    assert_eq!(log.seal_due(after(1)), None);
    assert_eq!(log.span().next, Sequence(51));
}

#[test]
fn time_of_chunks_never_decreases() {
    let log = Log::new(CONFIG);
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    let mut before = UnixMicros::NONE;
    for sequence in 1..10 {
        append(&log, sequence).unwrap();
        seal(&log);
        let Some(Delivery::Chunk { chunk, first }) = take(&mut reader) else {
            panic!("no chunk");
        };
        let time = chunk.cookies_from(first).header().accepted;
        assert!(time >= before);
        before = time;
    }
}

#[test]
fn rewind_is_limited_by_bytes_floor_and_oldest_chunk() {
    let log = Log::new(CONFIG);
    for sequence in 1..=10 {
        append(&log, sequence).unwrap();
        seal(&log);
    }
    let rewind = |position, bytes, floor| log.rewind(Sequence(position), bytes, Sequence(floor)).0;
    assert_eq!(rewind(11, 0, 1), 11);
    assert_eq!(rewind(11, 256, 1), 10);
    assert_eq!(rewind(11, 3 * 256 + 50, 1), 8);
    assert_eq!(rewind(11, usize::MAX, 1), 1);
    assert_eq!(rewind(11, usize::MAX, 4), 4);
    assert_eq!(rewind(5, 256, 1), 4);
    assert_eq!(rewind(1, usize::MAX, 1), 1);
}

#[tokio::test]
async fn idle_reader_gets_heartbeats_and_the_timer_task_seals_by_age() {
    let config = Config {
        chunk_age: Duration::from_millis(10),
        idle_after: Duration::from_millis(50),
        ..CONFIG
    };
    let log = Log::new(config);
    let timers = tokio_util::task::TaskTracker::new();
    timers.spawn(super::run_timers(log.clone()));
    let mut reader = log.reader(Sequence(1), u64::MAX, Sequence(0));
    assert!(matches!(
        reader.next().await,
        Delivery::Idle { next: Sequence(1) }
    ));
    append(&log, 1).unwrap();
    assert!(matches!(
        reader.next().await,
        Delivery::Chunk {
            first: Sequence(1),
            ..
        }
    ));
    assert!(matches!(
        reader.next().await,
        Delivery::Idle { next: Sequence(2) }
    ));
    log.close();
    assert!(matches!(
        reader.next().await,
        Delivery::End { last: Sequence(1) }
    ));
    timers.close();
    timers.wait().await;
}
