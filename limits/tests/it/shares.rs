//! Tests of shares of a limit, and of changes to several limits in one step.

use std::time::Duration;

use limits::{Algorithm, CarryOver, Decision, Demand, Limit, LimitId, Limits, Rate};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000_000 * SECOND;
const MAX_WAIT: Duration = Duration::from_secs(30);

fn one<K>(limit: LimitId, key: K) -> [Demand<K>; 1] {
    [Demand {
        limit,
        key,
        requests: 1,
    }]
}

fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::token_bucket(rate, burst).expect("a valid rate")
}

#[test]
fn combined_changes_equal_single_changes() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let [mut one_by_one, mut at_once] = [(); 2].map(|()| Limits::new(1_000));
        let draw = |random: &mut fastrand::Rng| -> Limit {
            let window = Duration::from_secs(random.u64(1..=2));
            let rate = Rate::new(random.u64(1..=50), window).unwrap();
            let limit = random.u64(1..=20);
            match random.u32(0..3) {
                0 => Algorithm::TokenBucket { rate, burst: 1 }.into(),
                1 => Algorithm::SlidingLog { limit, window }.into(),
                _ => Algorithm::TokenBucket { rate, burst: limit }.into(),
            }
        };
        for _ in 0..10 {
            let limit = draw(&mut random);
            assert_eq!(one_by_one.add(limit).unwrap(), at_once.add(limit).unwrap());
        }
        let ids: Vec<LimitId> = {
            let mut numbers = Limits::<u32>::new(1);
            let any = bucket("1/s", 1);
            (0..10).map(|_| numbers.add(any).unwrap()).collect()
        };
        let mut now = START;
        for _ in 0..50 {
            now += random.u64(0..SECOND / 10);
            let (limit, key) = (ids[random.usize(0..10)], random.u32(0..20));
            let demands = one(limit, key);
            assert_eq!(
                one_by_one.reserve(&demands, now, MAX_WAIT),
                at_once.reserve(&demands, now, MAX_WAIT)
            );
            if random.u32(0..8) == 0 {
                let carries = [CarryOver::Usage, CarryOver::Reset, CarryOver::Remaining];
                let count = random.usize(0..8);
                let changed = random.choose_multiple(ids.iter().copied(), count);
                let changes: Vec<(LimitId, Limit, CarryOver)> = changed
                    .into_iter()
                    .map(|id| (id, draw(&mut random), carries[random.usize(0..3)]))
                    .collect();
                for (id, limit, carry) in &changes {
                    one_by_one
                        .change_all(&[(*id, *limit, *carry)], now)
                        .unwrap();
                }
                at_once.change_all(&changes, now).unwrap();
            }
        }
    }
}

#[test]
fn changes_are_atomic() {
    let mut limits = Limits::<u32>::new(10);
    let ids = [(); 2].map(|()| limits.add(bucket("1/s", 1)).unwrap());
    let unfit = Algorithm::TokenBucket {
        rate: "1/s".parse().unwrap(),
        burst: 0,
    };
    let changes = [(ids[0], bucket("9/s", 9)), (ids[1], unfit)];
    let changes = changes.map(|(id, it)| (id, it.into(), CarryOver::Usage));
    assert!(limits.change_all(&changes, START).is_err());
    assert_eq!(limits.limit(ids[0]).algorithm, bucket("1/s", 1));
}

#[test]
fn share_scales_rate_and_burst() {
    let whole = bucket("300/s", 30);
    for (share, rate, burst) in [(1_000_000, "300/s", 30), (500_000, "150/s", 15)] {
        let part = whole.share(share).unwrap();
        let [found, expected] = [part, bucket(rate, burst)].map(|it| it.mean_rate());
        assert_eq!(
            (found.requests(), found.nanos()),
            (expected.requests(), expected.nanos())
        );
        assert_eq!(part.max_burst(), burst);
    }
    // A third, rounded down.
    let third = whole.share(333_333).unwrap();
    assert_eq!(
        third.mean_rate().requests_in(1_000_000 * SECOND),
        99_999_900
    );
    assert_eq!(third.max_burst(), 10);
    let nothing = whole.share(0).unwrap();
    assert_eq!(nothing.mean_rate().requests_in(86_400 * 365 * SECOND), 0);
    // Slow rates are rounded down too.
    let slow = bucket("1/h", 1).share(333_333).unwrap();
    let in_a_year = slow.mean_rate().requests_in(365 * 86_400 * SECOND);
    assert!((2_919..=2_920).contains(&in_a_year), "{in_a_year}");
    let window = Algorithm::SlidingLog {
        limit: 10,
        window: Duration::from_secs(1),
    };
    assert_eq!(window.share(500_000), None);
}

#[test]
fn moving_shares_create_no_new_bursts() {
    let whole = bucket("100/s", 50);
    let mut one_and_other = [(); 2].map(|()| Limits::new(1));
    let ids = [0, 1].map(|it: usize| {
        one_and_other[it]
            .add(whole.share(500_000).unwrap())
            .unwrap()
    });
    let mut gone = 0;
    // 0.9 of the limit moves between two processes every 100 ms for ten seconds, and both use all that they can.
    for step in 0..100 {
        let now = START + step * SECOND / 10;
        for side in [0, 1] {
            let share = if (step + side as u64).is_multiple_of(2) {
                950_000
            } else {
                50_000
            };
            let limit = whole.share(share).unwrap();
            one_and_other[side]
                .change_all(&[(ids[side], limit.into(), CarryOver::Remaining)], now)
                .unwrap();
        }
        for milli in 0..100 {
            let now = now + milli * SECOND / 1000;
            for side in [0, 1] {
                let call = one(ids[side], 0);
                while one_and_other[side].reserve(&call, now, Duration::ZERO) == Decision::Now {
                    gone += 1;
                }
            }
        }
    }
    // The rate, one burst, and rounding.
    assert!(gone <= 1_000 + 50 + 2, "{gone}");
    assert!(gone >= 1_000, "{gone}");
}

#[test]
fn moved_share_gives_no_burst_to_new_keys() {
    let whole = bucket("100/s", 50);
    let mut limits = Limits::new(10);
    let id = limits.add(whole.share(20_000).unwrap()).unwrap();
    let all = whole.share(1_000_000).unwrap();
    limits
        .change_all(&[(id, all.into(), CarryOver::Remaining)], START)
        .unwrap();
    let mut gone = |now| {
        let goes = || limits.reserve(&one(id, 7), now, Duration::ZERO) == Decision::Now;
        std::iter::repeat_with(goes)
            .take_while(|goes| *goes)
            .count()
    };
    assert_eq!(gone(START), 1);
    assert_eq!(gone(START + SECOND / 10), 10);
}
