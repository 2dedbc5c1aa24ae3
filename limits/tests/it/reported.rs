//! Tests of reported calls under a limit with bookings in the far future.

use std::time::Duration;

use limits::{Algorithm, CarryOver, Decision, Demand, LimitId, Limits};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_000_000 * SECOND;
const DAY: u64 = 86_400 * SECOND;
const MAX_WAIT: Duration = Duration::from_secs(100_000);

fn demand(limit: LimitId, key: u32, requests: u64) -> Demand<u32> {
    Demand {
        limit,
        key,
        requests,
    }
}

fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::token_bucket(rate, burst).expect("a valid rate")
}

/// A limit under which one call is booked a day ahead.
fn booked(algorithm: Algorithm) -> (Limits<u32>, LimitId) {
    let mut limits = Limits::new(10);
    let id = limits.add(algorithm).expect("valid parameters");
    let ahead = limits.reserve_from(&[demand(id, 0, 1)], START + DAY, START, MAX_WAIT);
    assert_eq!(ahead.at(START), Some(START + DAY));
    (limits, id)
}

fn next(limits: &Limits<u32>, id: LimitId) -> u64 {
    let (at, _) = limits
        .peek(&[demand(id, 0, 1)], 0, START)
        .expect("a slot exists");
    at - START
}

#[test]
fn reported_calls_count_before_a_waiting_call() {
    let (mut limits, id) = booked(bucket("1/s", 5));
    limits.record(&[demand(id, 0, 3)], START, START).unwrap();
    assert_eq!(limits.remaining(id, &0, START).requests, 2);
    let two = limits.reserve(&[demand(id, 0, 2)], START, Duration::ZERO);
    assert_eq!((two, next(&limits, id)), (Decision::Now, SECOND));
}

#[test]
fn reported_calls_do_not_overdraw_a_bucket() {
    let bucket = bucket("1/s", 5);
    let queue = Algorithm::LeakyBucket {
        rate: "1/s".parse().unwrap(),
        capacity: 5,
    };
    let warm_up = Algorithm::WarmUp {
        rate: "1/s".parse().unwrap(),
        warm_up: Duration::from_secs(4),
    };
    for (algorithm, worst) in [(bucket, 1), (queue, 6), (warm_up, 6)] {
        let mut limits = Limits::new(10);
        let id = limits.add(algorithm).unwrap();
        for _ in 0..1_000 {
            limits.record(&[demand(id, 0, 5)], START, START).unwrap();
        }
        let next = limits.remaining(id, &0, START).more_at - START;
        assert!(
            next >= SECOND && next <= worst * SECOND,
            "{algorithm:?} {next}"
        );
        let (mut limits, id) = booked(bucket);
        for _ in 0..1_000 {
            limits.record(&[demand(id, 0, 5)], START, START).unwrap();
        }
        assert_eq!(self::next(&limits, id), SECOND);
    }
}

#[test]
fn reports_and_changes_keep_the_gap_before_a_waiting_call() {
    let (mut limits, id) = booked(bucket("1000/s", 10));
    let reported = [demand(id, 0, 10)];
    limits.record(&reported, START, START).unwrap();
    assert_eq!(next(&limits, id), SECOND / 1_000);
    for (rate, carry, expected) in [
        // The ten reported requests take twice as long.
        ("500/s", CarryOver::Usage, 2),
        ("1000/s", CarryOver::Usage, 0),
        ("1/s", CarryOver::Remaining, 1_000),
        ("1/s", CarryOver::Reset, 0),
    ] {
        let changed = bucket(rate, 10);
        limits
            .change_all(&[(id, changed.into(), carry)], START)
            .unwrap();
        let next = next(&limits, id);
        assert!(
            next <= expected.max(20) * SECOND / 1_000,
            "{rate} {carry:?}: {next}"
        );
    }
}

/// A model of a token bucket: a list of calls. Reported calls do not overdraw the bucket.
struct Model {
    interval: u64,
    burst: u64,
    /// Time, number of requests, and whether the call was reported.
    calls: Vec<(u64, u64, bool)>,
}

impl Model {
    /// Index of each admitted call and the time by which it was too early, in call order.
    fn too_early(&self) -> Vec<(usize, u64)> {
        let mut order: Vec<_> = self.calls.iter().enumerate().collect();
        order.sort_by_key(|(_, (at, ..))| *at);
        let mut paid = 0;
        let mut too_early = Vec::new();
        for (index, (at, requests, is_reported)) in order {
            let worst = at + self.burst * self.interval;
            let after = paid.max(*at) + requests * self.interval;
            if !is_reported {
                too_early.push((index, after.saturating_sub(worst)));
            }
            paid = after.min(worst).max(paid);
        }
        too_early.sort_unstable();
        too_early
    }
}

#[test]
fn admitted_calls_respect_reported_usage() {
    let (mut ahead, mut between) = (0, 0);
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let burst = random.u64(1..=8);
        let mut model = Model {
            interval: SECOND / 20,
            burst,
            calls: Vec::new(),
        };
        let mut limits = Limits::new(100);
        let own = limits.add(bucket("3/s", 3)).unwrap();
        let whole = limits.add(bucket("20/s", burst)).unwrap();
        let mut now = START;
        for _ in 0..200 {
            now += random.u64(..SECOND / 8);
            let (key, requests) = (random.u32(1..9), random.u64(1..=burst.min(3)));
            let demands = [demand(own, key, requests), demand(whole, 0, requests)];
            if random.u8(..5) == 0 {
                let demands = &demands[random.usize(..2)..];
                limits.record(demands, now, now).unwrap();
                model.calls.push((now, requests, true));
                continue;
            }
            let from = now + random.u64(..3).saturating_sub(1) * random.u64(..9 * SECOND);
            let decision = limits.reserve_from(&demands, from, now, MAX_WAIT);
            let at = decision.at(now).expect("a slot exists");
            let before = model.too_early();
            let latest = model.calls.iter().map(|(at, ..)| *at).max();
            between += u32::from(latest > Some(at));
            ahead += u32::from(at > now);
            model.calls.push((at, requests, false));
            let mut after = model.too_early();
            assert_eq!(after.pop(), Some((model.calls.len() - 1, 0)), "seed {seed}");
            // The new call does not delay waiting calls.
            for (was, is) in before.iter().zip(&after) {
                assert!(is <= was, "seed {seed}: {was:?} {is:?}");
            }
        }
    }
    assert!(ahead > 1_000 && between > 1_000, "{ahead} {between}");
}

#[test]
fn reported_calls_fill_the_queue_of_a_leaky_bucket() {
    let rate = "1/s".parse().unwrap();
    let capacity = 100;
    for (reported, wait) in [(30, 30), (100, 100), (300, 101)] {
        let mut limits = Limits::new(1);
        let queue = Algorithm::LeakyBucket { rate, capacity };
        let id = limits.add(queue).unwrap();
        let reported = [demand(id, 0, reported)];
        limits.record(&reported, START, START).unwrap();
        let next = limits.remaining(id, &0, START).more_at - START;
        assert_eq!(next, wait * SECOND);
    }
}

#[test]
fn report_empties_a_half_full_bucket() {
    let mut limits = Limits::new(1);
    let id = limits.add(bucket("1/s", 1)).unwrap();
    for now in [START, START + SECOND / 2] {
        limits.record(&[demand(id, 0, 1)], now, now).unwrap();
        let found = limits.peek(&[demand(id, 0, 1)], 0, now);
        assert_eq!(found, Ok((now + SECOND, Some(id))));
    }
}

#[test]
fn reports_in_several_steps_do_not_overflow() {
    let mut limits = Limits::new(10);
    let algorithm = Algorithm::StepWindow {
        limit: 5,
        window: Duration::from_secs(10),
        step: Duration::from_secs(1),
    };
    let id = limits.add(algorithm).expect("valid parameters");
    for second in 0..3 {
        let at = START + second * SECOND;
        let reported = limits.record(&[demand(id, 0, u64::MAX)], at, at);
        reported.expect("the table has capacity");
    }
    // A call waits until the latest step leaves the window.
    for (second, next) in [(2, 10), (11, 1), (12, 0)] {
        let now = START + second * SECOND;
        let (at, _) = limits
            .peek(&[demand(id, 0, 1)], 0, now)
            .expect("a slot exists");
        assert_eq!(at - now, next * SECOND, "{second}");
    }
}
