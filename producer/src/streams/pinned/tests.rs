use super::*;

const KIB: usize = 1024;

fn pinned(bytes_max: u64) -> Pinned {
    Pinned::register(&Registry::new(), bytes_max).unwrap()
}

fn account() -> Arc<Account> {
    Arc::new(Account::new(Call::Subscribe, "a"))
}

fn open(pinned: &Pinned) -> Arc<Hold> {
    pinned.open(&account(), Instant::now())
}

/// Of streams that hold so many bytes and have stood still for so many milliseconds, tells who is cut off.
#[track_caller]
fn check(bytes_max: usize, streams: &[(usize, u64)], expected: &[usize]) {
    const NOW: u64 = 1_000_000;
    let pinned = pinned(u64::MAX);
    let held: Vec<_> = streams
        .iter()
        .map(|&(bytes, stood)| {
            let hold = open(&pinned);
            let pin = hold.pin(bytes);
            hold.moved_millis.store(NOW - stood, Ordering::Relaxed);
            (hold, pin)
        })
        .collect();
    // Whoever is cut off still holds what it has: it must not cost another one its stream.
    for _ in 0..2 {
        pinned.shared.enforce(bytes_max as u64, NOW);
        let cut = held.iter().enumerate();
        let cut: Vec<_> = cut
            .filter(|(_, (hold, _))| hold.cut().is_cancelled())
            .map(|(number, _)| number)
            .collect();
        assert_eq!(cut, expected, "{streams:?}");
    }
    let cuts: u64 = held.iter().map(|(hold, _)| hold.account.cuts()).sum();
    assert_eq!(cuts, expected.len() as u64, "{streams:?}");
}

#[test]
fn nobody_is_cut_off_within_the_bound() {
    check(100, &[(60, 5_000), (40, 5_000)], &[]);
}

#[test]
fn the_one_that_holds_most_is_cut_off() {
    check(500 * KIB, &[(300 * KIB, 0), (250 * KIB, 0)], &[0]);
    check(500 * KIB, &[(200 * KIB, 0), (350 * KIB, 0)], &[1]);
}

#[test]
fn of_equals_the_one_that_has_stood_still_for_longest_is_cut_off() {
    let holding = 320 * KIB;
    let streams = [(holding, 150), (holding, 200), (holding + KIB, 50)];
    check(700 * KIB, &streams, &[1]);
}

#[test]
fn one_that_stands_still_goes_before_one_that_moves() {
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
    let pinned = pinned(100);
    let (small, large) = (open(&pinned), open(&pinned));
    let _small = small.pin(40);
    let kept = large.pin(60);
    assert!(!large.cut().is_cancelled() && !small.cut().is_cancelled());
    large.moved_millis.store(0, Ordering::Relaxed);
    let _more = large.pin(64 * KIB);
    assert!(large.cut().is_cancelled() && !small.cut().is_cancelled());
    drop(kept);
}

#[test]
fn what_is_let_go_no_longer_counts() {
    let pinned = pinned(100);
    let account = account();
    let hold = pinned.open(&account, Instant::now());
    for _ in 0..10 {
        let first = hold.pin(60);
        let second = hold.pin(40);
        assert_eq!((account.bytes(), hold.bytes()), (100, 100));
        drop(first);
        assert_eq!(pinned.shared.total(), 40);
        drop(second);
    }
    assert_eq!((account.bytes(), pinned.shared.total()), (0, 0));
    assert_eq!(account.cuts(), 0);
}

#[test]
fn ended_streams_are_forgotten() {
    let pinned = pinned(100);
    for _ in 0..10 {
        drop(open(&pinned));
    }
    assert_eq!(pinned.shared.holds().len(), 1);
}

#[tokio::test]
async fn one_that_was_cut_off_is_waited_for_until_it_holds_nothing() {
    let pinned = pinned(100);
    let hold = open(&pinned);
    let pin = hold.pin(101);
    let waiting = done_at_once(hold.released());
    assert!(!waiting, "it holds something");
    drop(pin);
    hold.released().await;
}

/// Whether a future is done at the first look.
fn done_at_once(future: impl Future<Output = ()>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(future).poll(&mut context).is_ready()
}
