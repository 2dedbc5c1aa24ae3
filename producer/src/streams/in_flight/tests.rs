//! Tests of the accounting of in-flight bytes, and of the choice of streams to disconnect.

use super::*;
use crate::log::tests::now;

const KIB: usize = 1024;

fn budget(bytes_max: u64) -> StreamBudget {
    StreamBudget::register(&Registry::new(), bytes_max).unwrap()
}

fn subscriber() -> Arc<SubscriberInFlight> {
    Arc::new(SubscriberInFlight::new(Call::Subscribe, "a"))
}

fn open(budget: &StreamBudget) -> Arc<InFlight> {
    budget.open(&subscriber())
}

/// Checks which streams are disconnected. Each stream is given by its bytes in flight and how long it is stalled, in
/// milliseconds.
#[track_caller]
fn check(bytes_max: usize, streams: &[(usize, u64)], expected: &[usize]) {
    const NOW: u64 = 1_000_000;
    let budget = budget(u64::MAX);
    let held: Vec<_> = streams
        .iter()
        .map(|&(bytes, stalled)| {
            let stream = open(&budget);
            let charge = stream.charge(bytes);
            stream
                .progress_millis
                .store(NOW - stalled, Ordering::Relaxed);
            (stream, charge)
        })
        .collect();
    // Enforced twice, because bytes of disconnected streams must not count against other streams.
    for _ in 0..2 {
        budget.shared.enforce(bytes_max as u64, NOW);
        let disconnected = held.iter().enumerate();
        let disconnected: Vec<_> = disconnected
            .filter(|(_, (stream, _))| stream.disconnect().is_cancelled())
            .map(|(number, _)| number)
            .collect();
        assert_eq!(disconnected, expected, "{streams:?}");
    }
    let disconnects: u64 = held
        .iter()
        .map(|(stream, _)| stream.subscriber.disconnects())
        .sum();
    assert_eq!(disconnects, expected.len() as u64, "{streams:?}");
}

#[test]
fn no_stream_is_disconnected_within_the_budget() {
    check(100, &[(60, 5_000), (40, 5_000)], &[]);
}

#[test]
fn stream_with_most_bytes_in_flight_is_disconnected() {
    check(500 * KIB, &[(300 * KIB, 0), (250 * KIB, 0)], &[0]);
    check(500 * KIB, &[(200 * KIB, 0), (350 * KIB, 0)], &[1]);
}

#[test]
fn longest_stalled_of_equal_streams_is_disconnected() {
    let bytes = 320 * KIB;
    let streams = [(bytes, 150), (bytes, 200), (bytes + KIB, 50)];
    check(700 * KIB, &streams, &[1]);
}

#[test]
fn stalled_stream_is_disconnected_before_one_that_makes_progress() {
    check(400 * KIB, &[(100 * KIB, 2_000), (350 * KIB, 100)], &[0]);
}

#[test]
fn only_as_many_streams_as_needed_are_disconnected() {
    let streams = [(100, 4), (100, 3), (250 * KIB, 2), (100, 1)];
    check(250, &streams, &[0, 2]);
    check(100, &[(101, 0)], &[0]);
}

#[test]
fn stream_is_disconnected_when_its_next_chunk_exceeds_the_budget() {
    let budget = budget(100);
    let (small, large) = (open(&budget), open(&budget));
    let _small = small.charge(40);
    let first = large.charge(60);
    assert!(!large.disconnect().is_cancelled() && !small.disconnect().is_cancelled());
    large.progress_millis.store(0, Ordering::Relaxed);
    let _more = large.charge(64 * KIB);
    assert!(large.disconnect().is_cancelled() && !small.disconnect().is_cancelled());
    drop(first);
}

#[test]
fn released_bytes_no_longer_count() {
    let budget = budget(100);
    let subscriber = subscriber();
    let stream = budget.open(&subscriber);
    for _ in 0..10 {
        let first = stream.charge(60);
        let second = stream.charge(40);
        assert_eq!((subscriber.bytes(), stream.bytes()), (100, 100));
        drop(first);
        assert_eq!(budget.shared.total(), 40);
        drop(second);
    }
    assert_eq!((subscriber.bytes(), budget.shared.total()), (0, 0));
    assert_eq!(subscriber.disconnects(), 0);
}

#[test]
fn ended_streams_are_removed() {
    let budget = budget(100);
    for _ in 0..10 {
        drop(open(&budget));
    }
    assert_eq!(budget.shared.streams.lock().all.len(), 1);
}

#[tokio::test]
async fn released_waits_until_no_bytes_are_in_flight() {
    let budget = budget(100);
    let stream = open(&budget);
    let charge = stream.charge(101);
    assert!(now(stream.released()).is_none(), "bytes are in flight");
    drop(charge);
    stream.released().await;
}

#[test]
fn budget_is_enforced_after_concurrent_releases_and_charges() {
    for round in 0..2_000 {
        let budget = budget(100);
        let first = open(&budget);
        let charges: Vec<_> = (0..200).map(|_| first.charge(20)).collect();
        assert!(first.disconnect().is_cancelled());
        std::thread::scope(|scope| {
            let releasing = scope.spawn(|| drop(charges));
            while !releasing.is_finished() {
                drop(open(&budget).charge(101));
            }
        });
        assert_eq!(budget.bytes(), 0);
        let last = open(&budget);
        let _charge = last.charge(101);
        assert!(last.disconnect().is_cancelled(), "round {round}");
    }
}
