//! Streams with bytes in flight, and which of them are cut off.

use super::*;
use crate::log::tests::now;

const KIB: usize = 1024;

fn budget(bytes_max: u64) -> StreamBudget {
    StreamBudget::register(&Registry::new(), bytes_max).unwrap()
}

fn queue() -> Arc<QueueInFlight> {
    Arc::new(QueueInFlight::new(Call::Subscribe, "a"))
}

fn open(budget: &StreamBudget) -> Arc<InFlight> {
    budget.open(&queue())
}

/// Checks which streams are cut off; each is given by the bytes it holds and the milliseconds it has been stalled for.
#[track_caller]
fn check(bytes_max: usize, streams: &[(usize, u64)], expected: &[usize]) {
    const NOW: u64 = 1_000_000;
    let budget = budget(u64::MAX);
    let held: Vec<_> = streams
        .iter()
        .map(|&(bytes, stood)| {
            let stream = open(&budget);
            let charge = stream.charge(bytes);
            stream.progress_millis.store(NOW - stood, Ordering::Relaxed);
            (stream, charge)
        })
        .collect();
    // A stream that is cut off still holds its bytes: that must not cost another one its stream.
    for _ in 0..2 {
        budget.shared.enforce(bytes_max as u64, NOW);
        let cut = held.iter().enumerate();
        let cut: Vec<_> = cut
            .filter(|(_, (stream, _))| stream.cut().is_cancelled())
            .map(|(number, _)| number)
            .collect();
        assert_eq!(cut, expected, "{streams:?}");
    }
    let cuts: u64 = held.iter().map(|(stream, _)| stream.queue.cuts()).sum();
    assert_eq!(cuts, expected.len() as u64, "{streams:?}");
}

#[test]
fn nobody_is_cut_off_within_the_budget() {
    check(100, &[(60, 5_000), (40, 5_000)], &[]);
}

#[test]
fn the_one_that_holds_most_is_cut_off() {
    check(500 * KIB, &[(300 * KIB, 0), (250 * KIB, 0)], &[0]);
    check(500 * KIB, &[(200 * KIB, 0), (350 * KIB, 0)], &[1]);
}

#[test]
fn of_equals_the_one_stalled_for_longest_is_cut_off() {
    let holding = 320 * KIB;
    let streams = [(holding, 150), (holding, 200), (holding + KIB, 50)];
    check(700 * KIB, &streams, &[1]);
}

#[test]
fn stalled_stream_goes_before_one_that_makes_progress() {
    check(400 * KIB, &[(100 * KIB, 2_000), (350 * KIB, 100)], &[0]);
}

#[test]
fn as_many_are_cut_off_as_are_too_many_and_no_more() {
    let streams = [(100, 4), (100, 3), (250 * KIB, 2), (100, 1)];
    check(250, &streams, &[0, 2]);
    check(100, &[(101, 0)], &[0]);
}

#[test]
fn stream_is_cut_off_by_what_it_is_handed() {
    let budget = budget(100);
    let (small, large) = (open(&budget), open(&budget));
    let _small = small.charge(40);
    let kept = large.charge(60);
    assert!(!large.cut().is_cancelled() && !small.cut().is_cancelled());
    large.progress_millis.store(0, Ordering::Relaxed);
    let _more = large.charge(64 * KIB);
    assert!(large.cut().is_cancelled() && !small.cut().is_cancelled());
    drop(kept);
}

#[test]
fn what_is_released_no_longer_counts() {
    let budget = budget(100);
    let queue = queue();
    let stream = budget.open(&queue);
    for _ in 0..10 {
        let first = stream.charge(60);
        let second = stream.charge(40);
        assert_eq!((queue.bytes(), stream.bytes()), (100, 100));
        drop(first);
        assert_eq!(budget.shared.total(), 40);
        drop(second);
    }
    assert_eq!((queue.bytes(), budget.shared.total()), (0, 0));
    assert_eq!(queue.cuts(), 0);
}

#[test]
fn ended_streams_are_forgotten() {
    let budget = budget(100);
    for _ in 0..10 {
        drop(open(&budget));
    }
    assert_eq!(budget.shared.streams().all.len(), 1);
}

#[tokio::test]
async fn stream_that_was_cut_off_is_waited_for_until_nothing_is_in_flight() {
    let budget = budget(100);
    let stream = open(&budget);
    let charge = stream.charge(101);
    assert!(now(stream.released()).is_none(), "it holds something");
    drop(charge);
    stream.released().await;
}

#[test]
fn stream_that_exceeds_the_budget_is_cut_off_after_others_released_theirs_at_the_same_time() {
    for round in 0..2_000 {
        let budget = budget(100);
        let first = open(&budget);
        let charges: Vec<_> = (0..200).map(|_| first.charge(20)).collect();
        assert!(first.cut().is_cancelled());
        std::thread::scope(|scope| {
            let releasing = scope.spawn(|| drop(charges));
            while !releasing.is_finished() {
                drop(open(&budget).charge(101));
            }
        });
        assert_eq!(budget.bytes(), 0);
        let last = open(&budget);
        let _charge = last.charge(101);
        assert!(last.cut().is_cancelled(), "round {round}");
    }
}
