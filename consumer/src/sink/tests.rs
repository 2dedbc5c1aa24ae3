//! Tests of the sink with slow and failing stores.

mod fake;
mod newest;
mod outages;
mod outcomes;
mod states;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::atomic::AtomicU32,
    time::Duration,
};

use parking_lot::Mutex;
use proto::units::DspId;
use runtime::metrics::Registry;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{store_caller::StoreCaller, *};
use crate::{
    batch::{
        Cursor,
        tests::{aged_chunk, batch, chunk},
    },
    dead_letters::DeadLetters,
    dsp_slots::DspSlots,
    health::Health,
    ledger::LedgerCounts,
    metrics::Metrics,
    retry_queue::{Retrier, RetryQueue},
    store::{Backlog, Cookies, DeferredCookies},
    subscription::buffer::{self, BufferWriter, Item},
    suppression::Suppression,
    ttl::Ttls,
};
use crate::{
    clock::{self, ClockJumps},
    deletions::Deletions,
    producers::Producers,
};
use fake::FakeStore;

struct Sink {
    store: Arc<FakeStore>,
    health: Arc<Health>,
    metrics: Metrics,
    buffer: BufferWriter,
    fast_drain: CancellationToken,
    /// Stops the writer immediately.
    stop: CancellationToken,
    dir: TempDir,
    ended: tokio::task::JoinHandle<Result<(), Failure>>,
}

fn suppression() -> Arc<Mutex<Suppression>> {
    Arc::new(Mutex::new(Suppression::new(HOUR, 1 << 20, no_expiry())))
}

fn slots() -> DspSlots {
    DspSlots::new(BTreeSet::new(), 512)
}

/// TTLs that expire no cookie, although these tests accept cookies at the Unix epoch.
fn no_expiry() -> Ttls {
    Ttls::new(Duration::MAX, BTreeMap::new())
}

fn no_rejected_dsps() -> tokio::sync::watch::Receiver<BTreeSet<DspId>> {
    tokio::sync::watch::channel(BTreeSet::new()).1
}

fn no_recovery(metrics: &Metrics) -> crate::recovery::Intake {
    crate::recovery::recovery(None, false, &metrics.subscription, &Producers::default()).1
}

/// A writer with the dead-letter file in `dir`.
fn writer(
    cookies: Arc<dyn Cookies>,
    backlog: Option<Arc<dyn Backlog>>,
    suppression: Arc<Mutex<Suppression>>,
    health: Arc<Health>,
    metrics: &Metrics,
    dir: &Path,
    stop: CancellationToken,
) -> Writer {
    let (sink, letters) = (metrics.sink.clone(), dir.join("letters"));
    let dead_letters = DeadLetters::new(letters, 1 << 20, sink.dead_letters.clone());
    Writer {
        write_rate: WriteRate::default(),
        caller: StoreCaller::new(cookies.hang_timeout(), health, sink, stop),
        cookies,
        backlog,
        suppression,
        dead_letters,
        retry_queue: RetryQueue::new(BTreeSet::new(), Deletions::default(), metrics.sink.clone()),
        copied: watch::Sender::new(0),
    }
}

fn start(store: FakeStore, limits: BatchLimits) -> Sink {
    start_with(store, limits, no_expiry())
}

fn start_with(store: FakeStore, limits: BatchLimits, ttls: Ttls) -> Sink {
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let (store, health) = (Arc::new(store), Arc::new(Health::default()));
    let (buffer, reader) = buffer::buffer(1 << 20, &metrics.subscription);
    let (batch_sender, batches) = batch_channel();
    let suppression = suppression();
    let dir = TempDir::new().unwrap();
    let stop = CancellationToken::new();
    let writer = writer(
        Arc::clone(&store) as _,
        Some(Arc::clone(&store) as _),
        Arc::clone(&suppression),
        Arc::clone(&health),
        &metrics,
        dir.path(),
        stop.clone(),
    );
    let tasks = TaskTracker::new();
    let fast_drain = CancellationToken::new();
    let collector = Collector {
        write_rate: WriteRate::default(),
        limits,
        suppression,
        metrics: metrics.sink.clone(),
        fast_drain: fast_drain.clone(),
        clock: ClockJumps::new(clock::now(), Instant::now()),
        slots: slots(),
        ttls,
        deletions: Deletions::default(),
        producers: Producers::default(),
        rejected_dsps: no_rejected_dsps(),
        recovery: no_recovery(&metrics),
    };
    tasks.spawn(collector.run(reader, batch_sender));
    let ended = tasks.spawn(writer.run(batches));
    Sink {
        store,
        health,
        metrics,
        buffer,
        fast_drain,
        stop,
        dir,
        ended,
    }
}

const HOUR: Duration = Duration::from_secs(3600);

const LIMITS: BatchLimits = BatchLimits {
    flush_interval: Duration::from_millis(200),
    cookies_max: 4,
    bytes_max: 1 << 20,
};

/// The ledger of an idle sink.
#[track_caller]
fn settled(metrics: &Metrics) -> LedgerCounts {
    let counts = metrics.sink.ledger.counts();
    assert!(counts.is_balanced() && counts.waiting == 0, "{counts:?}");
    counts
}

async fn push(sink: &Sink, sequence: u64) {
    let user = format!("user-{sequence}");
    let chunk = chunk(sequence, 1, &[(&user, 1, "b")]);
    let item = Item::Chunk("p".into(), chunk);
    sink.buffer.push(item).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn batch_grows_up_to_its_limit_while_the_writer_is_busy() {
    let store = FakeStore {
        slow: Duration::from_secs(10),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_secs(1)).await;
    for sequence in 2..=10 {
        push(&sink, sequence).await;
        sleep(Duration::from_millis(500)).await;
    }
    assert!(sink.metrics.subscription.buffer_bytes.get() > 0);
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let sizes: Vec<_> = sink.store.batches.lock().iter().map(|b| b.0).collect();
    assert_eq!(sizes, [1, 4, 4, 1]);
}

#[tokio::test(start_paused = true)]
async fn fast_drain_stores_its_batches_and_skips_the_buffer() {
    let store = FakeStore {
        slow: Duration::from_secs(3),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_secs(1)).await;
    for sequence in 2..=10 {
        push(&sink, sequence).await;
    }
    sleep(Duration::from_millis(100)).await;
    sink.fast_drain.cancel();
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let batches = sink.store.batches.lock();
    let stored: Vec<_> = batches.iter().map(|(n, c)| (*n, c[0].sequence.0)).collect();
    assert_eq!(stored, [(1, 1), (4, 5)]);
    assert_eq!(sink.metrics.subscription.buffer_bytes.get(), 0);
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.drain_skipped), (5, 5));
}
