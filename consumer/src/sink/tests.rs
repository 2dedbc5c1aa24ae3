//! The sink with slow and failing stores.

mod fake;
mod newest;
mod states;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, atomic::AtomicU32},
};

use runtime::metrics::Registry;
use runtime::unix_micros;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;
use crate::deletions::Deletions;
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
    store::{DeferredCookies, Store},
    subscription::buffer::{self, BufferWriter, Item},
    ttl::Ttls,
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

/// Cookies of these tests are accepted at the Unix epoch.
fn no_expiry() -> Ttls {
    Ttls::new(Duration::MAX, BTreeMap::new())
}

fn no_rejected_dsps() -> tokio::sync::watch::Receiver<BTreeSet<u32>> {
    tokio::sync::watch::channel(BTreeSet::new()).1
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
    let letters = dir.path().join("letters");
    let stop = CancellationToken::new();
    let writer = Writer::new(
        Arc::clone(&store) as Arc<dyn Store>,
        Arc::clone(&suppression),
        Arc::clone(&health),
        metrics.sink.clone(),
        DeadLetters::new(letters, 1 << 20, metrics.sink.dead_letters.clone()),
        RetryQueue::new(
            BTreeSet::new(),
            Deletions::default(),
            metrics.retry_queue.clone(),
        ),
        stop.clone(),
    );
    let tasks = TaskTracker::new();
    let fast_drain = CancellationToken::new();
    let collector = Collector::new(
        limits,
        suppression,
        slots(),
        ttls,
        Deletions::default(),
        no_rejected_dsps(),
        metrics.sink.clone(),
        fast_drain.clone(),
    );
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
async fn expired_cookie_is_rejected_and_uses_no_dsp_slot() {
    let day = Ttls::new(24 * HOUR, [(9, HOUR)].into());
    let sink = start_with(FakeStore::default(), LIMITS, day);
    let ago = |age: Duration| unix_micros() - u64::try_from(age.as_micros()).unwrap();
    for (sequence, age, dsp_id) in [(1, 25, 7), (2, 23, 8), (3, 2, 9)] {
        let chunk = chunk(sequence, ago(age * HOUR), &[("u", dsp_id, "b")]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
    }
    let Sink { buffer, ended, .. } = sink;
    drop(buffer);
    ended.await.unwrap().unwrap();
    let counts = settled(&sink.metrics);
    assert_eq!((counts.expired, counts.written), (2, 1));
    assert_eq!(sink.metrics.sink.dsp_slots.get(), 1);
    let batches = sink.store.batches.lock().unwrap();
    assert_eq!(
        batches.last().unwrap().1[0].sequence,
        3,
        "the cursor advances past it"
    );
}

#[tokio::test(start_paused = true)]
async fn commit_waits_until_deferred_cookies_are_in_the_retry_queue() {
    let store = FakeStore {
        failing_dsp: Some(7),
        failed_puts: AtomicU32::new(2),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    let chunk = chunk(1, 1, &[("a", 7, "b"), ("a", 8, "b"), ("b", 7, "b")]);
    let item = Item::Chunk("p".into(), chunk);
    sink.buffer.push(item).await.unwrap();
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let events = sink.store.events.lock().unwrap().join(", ");
    assert_eq!(
        events,
        "write 3, written 3, put 2: false, put 2: false, put 2: true, commit 3, committed 3"
    );
    assert_eq!(
        sink.health.failing_dsps(),
        [(7, "no right".to_owned())].into()
    );
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.in_retry_queue), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn queued_cookies_are_written_once_if_the_reply_to_their_removal_is_lost() {
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let store = Arc::new(FakeStore {
        lost_removals: AtomicU32::new(2),
        ..FakeStore::default()
    });
    let retry_queue = RetryQueue::new(
        BTreeSet::new(),
        Deletions::default(),
        metrics.retry_queue.clone(),
    );
    let batch = batch(&[chunk(1, 1, &[("a", 7, "b"), ("b", 7, "b")])]);
    metrics.sink.ledger.received(2);
    let deferred = DeferredCookies {
        dsp_id: 7,
        why: None,
        indices: vec![0, 1],
    };
    let (full, _) = retry_queue.pack(&batch, &[deferred], |_| true);
    store
        .put_retry_entries(full.iter().cloned().collect())
        .await
        .unwrap();
    retry_queue.add_durable(&full);
    let dir = TempDir::new().unwrap();
    let letters = dir.path().join("letters");
    let health = Arc::new(Health::default());
    let retrier = Retrier::new(
        retry_queue.clone(),
        Arc::clone(&store) as Arc<dyn Store>,
        Arc::clone(&health),
        DeadLetters::new(letters, 1 << 20, metrics.sink.dead_letters.clone()),
        no_rejected_dsps(),
        no_expiry(),
    );
    let stop = CancellationToken::new();
    let ended = TaskTracker::new().spawn(retrier.run(stop.clone()));
    sleep(Duration::from_secs(60)).await;
    stop.cancel();
    ended.await.unwrap();
    let counts = settled(&metrics);
    assert_eq!((counts.written, counts.unreadable), (2, 0), "{counts:?}");
    assert!(retry_queue.dsps().is_empty() && health.failing_dsps().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_batch_is_repeated_and_all_cookies_are_stored_at_the_end() {
    let failures = AtomicU32::new(5);
    let store = FakeStore {
        failures,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_millis(300)).await;
    assert!(sink.health.store_down().unwrap().contains("for now"));
    for sequence in 2..=6 {
        push(&sink, sequence).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let batches = sink.store.batches.lock().unwrap();
    assert_eq!(batches.iter().map(|(cookies, _)| cookies).sum::<usize>(), 6);
    assert_eq!(batches.last().unwrap().1[0].sequence, 6);
    assert_eq!(sink.metrics.sink.store_errors.get(), 5);
    assert_eq!(settled(&sink.metrics).written, 6);
    assert_eq!(sink.metrics.sink.store_up.get(), 1);
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
    let sizes: Vec<_> = sink
        .store
        .batches
        .lock()
        .unwrap()
        .iter()
        .map(|b| b.0)
        .collect();
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
    let batches = sink.store.batches.lock().unwrap();
    let stored: Vec<_> = batches.iter().map(|(n, c)| (*n, c[0].sequence)).collect();
    assert_eq!(stored, [(1, 1), (4, 5)]);
    assert_eq!(sink.metrics.subscription.buffer_bytes.get(), 0);
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.drain_skipped), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn store_that_does_not_respond_is_reported_after_a_timeout() {
    let store = FakeStore {
        slow: Duration::from_secs(60),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_millis(900)).await;
    assert_eq!(sink.health.store_down().as_deref(), Some("not opened yet"));
    sleep(Duration::from_secs(1)).await;
    let why = sink.health.store_down().unwrap();
    assert!(why.contains("no response for 1s; check --store"), "{why}");
    sleep(Duration::from_secs(4)).await;
    let why = sink.health.store_down();
    assert_eq!(why.as_deref(), Some("no response for 5s"));
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    assert_eq!(sink.metrics.sink.store_up.get(), 1);
    assert_eq!(sink.metrics.sink.store_errors.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn hanging_store_needs_a_restart_until_it_responds() {
    let store = FakeStore {
        slow: Duration::from_secs(60),
        hang_timeout: Some(Duration::from_secs(30)),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(Duration::from_secs(29)).await;
    assert_eq!(sink.health.needs_restart(), None);
    sleep(Duration::from_secs(2)).await;
    let why = "no response for 30s; probably only a restart helps";
    assert_eq!(sink.health.store_down().as_deref(), Some(why));
    assert_eq!(sink.health.needs_restart(), Some(format!("store: {why}")));
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    assert_eq!(sink.health.needs_restart(), None);
    assert_eq!(settled(&sink.metrics).written, 1);
}

#[tokio::test(start_paused = true)]
async fn time_far_ahead_is_clamped_and_counted() {
    let sink = start(FakeStore::default(), LIMITS);
    for (sequence, accepted) in [(1, u64::MAX), (2, unix_micros()), (3, u64::MAX)] {
        let chunk = chunk(sequence, accepted, &[("u", 1, "b")]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    assert_eq!(sink.metrics.sink.clock_clamped.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn duplicate_is_not_written_but_its_cursor_is() {
    let sink = start(FakeStore::default(), LIMITS);
    for (sequence, uid) in [(1, "b"), (2, "b"), (3, "c")] {
        let chunk = chunk(sequence, unix_micros(), &[("u", 1, uid)]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
        sleep(Duration::from_millis(300)).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let batches = sink.store.batches.lock().unwrap();
    let stored: Vec<_> = batches.iter().map(|(n, c)| (*n, c[0].sequence)).collect();
    assert_eq!(stored, [(1, 1), (0, 2), (1, 3)]);
    let counts = settled(&sink.metrics);
    assert_eq!((counts.suppressed, counts.written), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn broken_store_ends_the_writer() {
    let store = FakeStore {
        broken: true,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    let ended = sink.ended.await.unwrap();
    assert!(matches!(ended, Err(Failure::Broken(_))), "{ended:?}");
    let restart = sink.health.needs_restart();
    assert_eq!(restart.as_deref(), Some("store: for good"));
}

#[tokio::test(start_paused = true)]
async fn rejected_cookie_becomes_a_dead_letter_and_blocks_nothing() {
    let store = FakeStore {
        picky: true,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in 1..=8 {
        push(&sink, sequence).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let letters = std::fs::read_to_string(sink.dir.path().join("letters")).unwrap();
    let users: Vec<_> = letters.lines().collect();
    assert_eq!(users.len(), 2, "{letters}");
    assert!(users[0].contains("user-1") && users[1].contains("user-5"));
    assert!(letters.contains("not this one"));
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.rejected), (6, 2));
    assert_eq!(
        sink.metrics
            .sink
            .dead_letters
            .with_label_values(&["written"])
            .get(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn cookies_are_waiting_until_they_are_durable() {
    let store = FakeStore {
        slow: Duration::from_secs(10),
        failed_commits: AtomicU32::new(1),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in 1..=3 {
        push(&sink, sequence).await;
    }
    let counts = || sink.metrics.sink.ledger.counts();
    assert_eq!((counts().received, counts().waiting), (3, 3));
    // Written after 10 s, but the commit fails; written again after 20 s and a delay.
    sleep(Duration::from_secs(15)).await;
    assert_eq!((counts().written, counts().waiting), (0, 3));
    assert!(counts().is_balanced());
    push(&sink, 4).await;
    assert_eq!(counts().waiting, 4);
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    settled(&sink.metrics);
}

#[tokio::test(start_paused = true)]
async fn cookie_rejected_only_when_its_batch_is_written_again_becomes_a_dead_letter() {
    let store = FakeStore {
        failed_commits: AtomicU32::new(1),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in 1..=4 {
        push(&sink, sequence).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let counts = settled(&sink.metrics);
    assert_eq!((counts.written, counts.rejected), (3, 1));
    let letters = std::fs::read_to_string(sink.dir.path().join("letters")).unwrap();
    assert!(letters.contains("user-1"), "{letters}");
}

#[tokio::test(start_paused = true)]
async fn read_only_store_counts_as_down() {
    let read_only = AtomicU32::new(6);
    let store: Arc<dyn Store> = Arc::new(FakeStore {
        read_only,
        ..FakeStore::default()
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let health = Arc::new(Health::default());
    let letters = DeadLetters::new("unused".into(), 1 << 20, metrics.sink.dead_letters.clone());
    let (reported, stop) = (Arc::clone(&health), CancellationToken::new());
    let mut writer = Writer::new(
        store,
        suppression(),
        health,
        metrics.sink.clone(),
        letters,
        RetryQueue::new(
            BTreeSet::new(),
            Deletions::default(),
            metrics.retry_queue.clone(),
        ),
        stop,
    );
    let loaded = writer.load();
    tokio::pin!(loaded);
    while metrics.sink.store_errors.get() < 3 {
        assert!(
            timeout(Duration::from_millis(10), &mut loaded)
                .await
                .is_err()
        );
    }
    assert_eq!(reported.store_down().as_deref(), Some("read only"));
    loaded.await.unwrap();
    assert_eq!(reported.store_down(), None);
    assert_eq!(metrics.sink.store_errors.get(), 6);
}
