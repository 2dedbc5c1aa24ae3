//! Tests of the writer's state transitions, including failures, stops, and the end of its input.

use std::sync::atomic::Ordering;

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A store that takes 100 ms to write, and a second to commit.
fn slow() -> FakeStore {
    FakeStore {
        slow: 100 * MS,
        slow_commit: SECOND,
        ..FakeStore::default()
    }
}

/// A sink that commits batch 1 and has written batch 2 at the same time.
async fn overlapping(store: FakeStore) -> Sink {
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(400 * MS).await;
    push(&sink, 2).await;
    sleep(400 * MS).await;
    sink
}

#[track_caller]
fn check_events(store: &FakeStore, expected: &[&str]) {
    assert_eq!(*store.events.lock(), expected);
}

fn letters(dir: &TempDir) -> String {
    std::fs::read_to_string(dir.path().join("letters")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn batch_is_written_while_the_previous_one_is_committed() {
    let sink = overlapping(slow()).await;
    let overlap = ["write 1", "written 1", "commit 1", "write 2", "written 2"];
    check_events(&sink.store, &overlap);
    let counts = sink.metrics.sink.ledger.counts();
    assert_eq!((counts.written, counts.waiting), (0, 2));
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let events = sink.store.events.lock();
    let after = ["committed 1", "commit 2", "committed 2"];
    assert_eq!(*events, [&overlap[..], &after].concat());
    assert_eq!(settled(&sink.metrics).written, 2);
}

#[tokio::test(start_paused = true)]
async fn batch_is_counted_as_soon_as_it_is_durable() {
    let store = FakeStore {
        slow_commit: SECOND,
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    push(&sink, 1).await;
    sleep(500 * MS).await;
    sink.store.failures.store(u32::MAX, Ordering::Relaxed);
    push(&sink, 2).await;
    sleep(2 * SECOND).await;
    // The next batch keeps failing, but does not delay this one.
    let counts = sink.metrics.sink.ledger.counts();
    assert_eq!((counts.written, counts.waiting), (1, 1));
    sink.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn failed_commit_repeats_both_batches_with_one_dead_letter_each() {
    let store = FakeStore {
        failed_commits: AtomicU32::new(1),
        picky: true,
        ..slow()
    };
    let sink = overlapping(store).await;
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    check_events(
        &sink.store,
        &[
            "write 1",
            "written 1",
            "commit 1",
            "write 2",
            "written 2",
            // The commit fails, so all later writes are repeated.
            "write 1",
            "written 1",
            "commit 1",
            "committed 1",
            "write 2",
            "written 2",
            "commit 2",
            "committed 2",
        ],
    );
    let letters = letters(&sink.dir);
    let users: Vec<_> = letters.lines().collect();
    assert_eq!(users.len(), 2, "{letters}");
    assert!(users[0].contains("user-1") && users[1].contains("user-2"));
    assert_eq!(settled(&sink.metrics).rejected, 2);
}

#[tokio::test(start_paused = true)]
async fn failed_write_during_a_commit_is_repeated() {
    let sink = start(slow(), LIMITS);
    push(&sink, 1).await;
    sleep(400 * MS).await;
    sink.store.failures.store(1, Ordering::Relaxed);
    push(&sink, 2).await;
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    check_events(
        &sink.store,
        &[
            "write 1",
            "written 1",
            "commit 1",
            "write 2",
            "committed 1",
            "write 2",
            "written 2",
            "commit 2",
            "committed 2",
        ],
    );
    assert_eq!(sink.metrics.sink.store_errors.get(), 1);
    assert_eq!(settled(&sink.metrics).written, 2);
}

#[tokio::test(start_paused = true)]
async fn cookie_rejected_only_when_its_batch_is_written_again_suppresses_no_duplicate() {
    let store = FakeStore {
        failed_commits: AtomicU32::new(1),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    for sequence in [1, 2] {
        let chunk = chunk(sequence, clock::now().0, &[("u", 1, "b")]);
        let item = Item::Chunk("p".into(), chunk);
        sink.buffer.push(item).await.unwrap();
        sleep(5 * SECOND).await;
    }
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let counts = settled(&sink.metrics);
    assert_eq!((counts.suppressed, counts.rejected), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn idle_store_is_pinged() {
    let store = FakeStore {
        read_only: AtomicU32::new(1),
        ..FakeStore::default()
    };
    let sink = start(store, LIMITS);
    sleep(6 * SECOND).await;
    assert_eq!(sink.health.store_down().as_deref(), Some("read only"));
    sleep(5 * SECOND).await;
    assert_eq!(sink.health.store_down(), None);
    assert_eq!(sink.metrics.sink.store_errors.get(), 1);
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn hanging_commit_is_reported_with_and_without_a_next_batch() {
    for is_followed in [false, true] {
        let store = FakeStore {
            slow_commit: 60 * SECOND,
            ..FakeStore::default()
        };
        let sink = start(store, LIMITS);
        push(&sink, 1).await;
        sleep(SECOND).await;
        if is_followed {
            push(&sink, 2).await;
        }
        sleep(2 * SECOND).await;
        assert_eq!(sink.health.store_down(), None);
        sleep(4 * SECOND).await;
        let why = sink.health.store_down();
        assert_eq!(why.as_deref(), Some("no response for 5s"), "{is_followed}");
        drop(sink.buffer);
        sink.ended.await.unwrap().unwrap();
        assert_eq!(sink.health.store_down(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn writer_stops_in_every_state() {
    let always = || AtomicU32::new(u32::MAX);
    let hanging = || FakeStore {
        slow_commit: 60 * SECOND,
        ..FakeStore::default()
    };
    let failing = FakeStore {
        failures: always(),
        ..FakeStore::default()
    };
    let slow = FakeStore {
        slow: 60 * SECOND,
        ..FakeStore::default()
    };
    let never_durable = FakeStore {
        failed_commits: always(),
        ..FakeStore::default()
    };
    for (state, store, batches) in [
        ("idle", FakeStore::default(), 0),
        ("writing", slow, 1),
        ("repeating", failing, 1),
        ("committing", hanging(), 1),
        ("committing, with a next batch", hanging(), 2),
        ("writing again", never_durable, 1),
    ] {
        let sink = start(store, LIMITS);
        for sequence in 1..=batches {
            push(&sink, sequence).await;
            sleep(SECOND).await;
        }
        sink.stop.cancel();
        let ended = timeout(100 * MS, sink.ended).await.expect(state).unwrap();
        assert!(matches!(ended, Err(Failure::Stopped)), "{state}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_batches_waits_for_the_commit() {
    let sink = start(slow(), LIMITS);
    push(&sink, 1).await;
    sleep(400 * MS).await;
    drop(sink.buffer);
    sink.ended.await.unwrap().unwrap();
    let events = sink.store.events.lock();
    assert_eq!(events.last().map(String::as_str), Some("committed 1"));
    assert_eq!(settled(&sink.metrics).written, 1);
}
