//! Tests of changed limits, refused calls and large calls.

use std::time::Duration;

use limits::{
    Algorithm, CarryOver, Decision, Demand, Limit, LimitId, Limits, RecordError, Refusal,
};

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

fn at(limits: &mut Limits<u32>, limit: LimitId, key: u32, now: u64) -> u64 {
    let decision = limits.reserve(&one(limit, key), now, MAX_WAIT);
    decision.at(now).expect("a slot within the maximum wait") - START
}

fn bucket(rate: &str, burst: u64) -> Algorithm {
    Algorithm::token_bucket(rate, burst).expect("a valid rate")
}

#[test]
fn rate_that_does_not_divide_a_second_keeps_its_remainder() {
    let mut limits = Limits::new(1);
    let limit = limits.add(bucket("300/s", 1)).unwrap();
    let moments: Vec<u64> = (0..3_001)
        .map(|_| at(&mut limits, limit, 0, START))
        .collect();
    assert_eq!(moments[..4], [0, 3_333_334, 6_666_667, 10_000_000]);
    assert_eq!((moments[300], moments[3_000]), (SECOND, 10 * SECOND));
}

/// 350 to 450 calls per second arrive for ten minutes; the limit is 300/s.
#[test]
fn shaped_overload_releases_exactly_the_rate_in_every_second() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut limits = Limits::new(1);
    let limit = limits.add(bucket("300/s", 1)).unwrap();
    let mut released = vec![0; 700];
    let (mut refused, mut arrived, mut first_refused) = (0_u64, 0_u64, None);
    for second in 0..600 {
        let many = random.u64(350..=450);
        for number in 0..many {
            let now = START + second * SECOND + number * SECOND / many;
            arrived += 1;
            match limits.reserve(&one(limit, 0), now, MAX_WAIT).at(now) {
                Some(at) => released[usize::try_from((at - START) / SECOND).unwrap()] += 1,
                None => {
                    refused += 1;
                    first_refused.get_or_insert(second);
                }
            }
        }
    }
    assert!(
        released[..600].iter().all(|count| *count == 300),
        "{released:?}"
    );
    // The wait grows by a third of a second per second, up to 30 s.
    let first = first_refused.expect("the limit is exceeded");
    assert!((80..=100).contains(&first), "{first}");
    let share = refused * 100 / arrived;
    assert!((20..=23).contains(&share), "{share} %");
}

#[test]
fn call_waiting_for_its_own_limit_does_not_delay_others() {
    let mut limits = Limits::new(200);
    let own = limits.add(bucket("1/s", 1)).unwrap();
    let whole = limits.add(bucket("10/s", 1)).unwrap();
    let demand = |limit, key| Demand {
        limit,
        key,
        requests: 1,
    };
    // One user books slots up to 25 s ahead.
    for second in 0..25 {
        let demands = [demand(own, 1), demand(whole, 0)];
        let found = limits.reserve(&demands, START, MAX_WAIT);
        assert_eq!(found.at(START), Some(START + second * SECOND));
    }
    // Nine of ten slots remain for the others.
    for number in 0..90_u32 {
        let demands = [demand(own, 2 + number), demand(whole, 0)];
        let found = limits.reserve(&demands, START, MAX_WAIT).at(START);
        let tenths = number / 9 * 10 + 1 + number % 9;
        assert_eq!(found, Some(START + u64::from(tenths) * SECOND / 10));
    }
}

#[test]
fn usage_follows_a_changed_limit_by_carry_over() {
    for (carry, next) in [
        // Ten requests, each of which takes twice as long now.
        (CarryOver::Usage, 20 * SECOND),
        (CarryOver::Reset, 0),
    ] {
        let mut limits = Limits::new(1);
        let limit = limits.add(bucket("1/s", 1)).unwrap();
        for _ in 0..10 {
            at(&mut limits, limit, 0, START);
        }
        let halved = bucket("1/2s", 1);
        limits
            .change_all(&[(limit, halved.into(), carry)], START)
            .unwrap();
        assert_eq!(
            limits.peek(&one(limit, 0), 0, START).unwrap().0 - START,
            next.max(9 * SECOND * u64::from(next > 0))
        );
    }
    // Two of five requests remain, and two of ten after the change.
    let mut limits = Limits::new(1);
    let limit = limits.add(bucket("1/h", 5)).unwrap();
    (0..3).for_each(|_| assert_eq!(at(&mut limits, limit, 0, START), 0));
    limits
        .change_all(
            &[(limit, bucket("1/h", 10).into(), CarryOver::Remaining)],
            START,
        )
        .unwrap();
    let mut go = || limits.reserve(&one(limit, 0), START, Duration::ZERO) == Decision::Now;
    assert_eq!([go(), go(), go()], [true, true, false]);
    // An invalid change has no effect.
    let unfit = Algorithm::SlidingLog {
        limit: 0,
        window: MAX_WAIT,
    };
    assert!(
        limits
            .change_all(&[(limit, unfit.into(), CarryOver::Reset)], START)
            .is_err()
    );
    assert_eq!(limits.limit(limit).algorithm, bucket("1/h", 10));
}

/// Waiting calls are rescheduled at each change. No interval admits more calls than its rates allow plus one burst.
#[test]
fn calls_stay_within_limits_across_one_thousand_changes() {
    for seed in 0..10 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut limits = Limits::new(1);
        let limit = limits.add(bucket("10/s", 1)).unwrap();
        let demands = one(limit, 0);
        let mut now = START;
        let (mut waiting, mut gone): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        // For each rate: its start, the rate, and the requests allowed before its start, multiplied by a second.
        let mut pieces = vec![(START, 10_u64, 0_u128)];
        for _ in 0..1_000 {
            for _ in 0..random.u32(1..20) {
                now += random.u64(..SECOND / 10);
                let begun = waiting.partition_point(|at| *at <= now);
                gone.extend(waiting.drain(..begun));
                let decision = limits.reserve(&demands, now, MAX_WAIT);
                waiting.extend(decision.at(now));
            }
            let begun = waiting.partition_point(|at| *at <= now);
            gone.extend(waiting.drain(..begun));
            let (since, rate, before) = pieces[pieces.len() - 1];
            let (new_rate, burst) = (random.u64(1..=100), random.u64(1..=5));
            pieces.push((
                now,
                new_rate,
                before + u128::from(rate) * u128::from(now - since),
            ));
            let new = bucket(&format!("{new_rate}/s"), burst);
            limits
                .change_all(&[(limit, new.into(), CarryOver::Usage)], now)
                .unwrap();
            let calls: Vec<_> = waiting.iter().map(|at| (&demands[..], *at)).collect();
            let mut planned = Vec::new();
            limits.reschedule(&calls, now, |_, decision| planned.extend(decision.at(now)));
            assert!(planned.is_sorted());
            waiting = planned;
        }
        assert!(gone.is_sorted() && gone.len() > 1_000, "{}", gone.len());
        let allowed = |at: u64| {
            let piece = pieces.partition_point(|(since, ..)| *since <= at) - 1;
            let (since, rate, before) = pieces[piece];
            before + u128::from(rate) * u128::from(at - since)
        };
        for (start, end) in [1, 2, 5, 20, 100, 1_000]
            .iter()
            .flat_map(|length| (0..).zip(*length..gone.len()))
        {
            let most = (allowed(gone[end] + 1) - allowed(gone[start])) / u128::from(SECOND) + 5;
            let went = u128::try_from(end - start + 1).unwrap();
            assert!(went <= most, "seed {seed}: {went} > {most} from {start}");
        }
    }
}

#[test]
fn refused_calls_count_only_with_count_refused() {
    let window = Duration::from_secs(1);
    for (count_refused, passed) in [(false, 100), (true, 10)] {
        let mut limits = Limits::new(1);
        let limit = Limit {
            count_refused,
            ..Algorithm::SlidingLog { limit: 10, window }.into()
        };
        let limit = limits.add(limit).unwrap();
        // Twice the limit for ten seconds: with count_refused, calls are never admitted again.
        let calls = (0..200).map(|number| START + number * SECOND / 20);
        let went = calls
            .filter(|now| limits.reserve(&one(limit, 0), *now, Duration::ZERO) == Decision::Now);
        assert_eq!(went.count(), passed);
    }
}

#[test]
fn refused_call_uses_no_quota() {
    let mut limits = Limits::new(10);
    let wide = limits.add(bucket("100/s", 100)).unwrap();
    let narrow = limits.add(bucket("1/h", 1)).unwrap();
    let demand = |limit| Demand {
        limit,
        key: "a",
        requests: 1,
    };
    assert_eq!(
        limits.reserve(&[demand(narrow)], START, MAX_WAIT),
        Decision::Now
    );
    let found = limits.reserve(&[demand(wide), demand(narrow)], START, MAX_WAIT);
    let retry_after = Duration::from_secs(3_600) - MAX_WAIT;
    let reason = Refusal::Wait { retry_after };
    assert_eq!(
        found,
        Decision::Refused {
            limit: narrow,
            reason
        }
    );
    assert_eq!(
        (limits.keys(), limits.remaining(wide, &"a", START).requests),
        (1, 100)
    );
    // Larger than the burst.
    let many = [Demand {
        requests: 101,
        ..demand(wide)
    }];
    let reason = Refusal::TooMany { max: 100 };
    assert_eq!(
        limits.reserve(&many, START, MAX_WAIT),
        Decision::Refused {
            limit: wide,
            reason
        }
    );
    // Two demands under one limit add up, and a demand for no requests is ignored.
    let half = Demand {
        requests: 60,
        ..demand(wide)
    };
    assert_ne!(
        limits.reserve(&[half, half], START, Duration::ZERO),
        Decision::Now
    );
    let nothing = Demand {
        requests: 0,
        ..demand(narrow)
    };
    assert_eq!(
        limits.reserve(&[nothing], START, Duration::ZERO),
        Decision::Now
    );
}

#[test]
fn step_window_counts_reports_at_the_time_of_the_call() {
    let mut limits = Limits::new(10);
    let window = Duration::from_secs(4);
    let step = Duration::from_secs(1);
    let limit = limits
        .add(Algorithm::StepWindow {
            limit: 10,
            window,
            step,
        })
        .unwrap();
    let demand = |requests| Demand {
        limit,
        key: 0,
        requests,
    };
    // Ten requests in four steps, reported out of order: 3, 3, 2, 2. Six remain when the first two steps have left the window.
    for (second, requests) in [(2, 2), (0, 3), (3, 2), (1, 3)] {
        limits
            .record(
                &[demand(requests)],
                START + second * SECOND,
                START + 3 * SECOND,
            )
            .unwrap();
    }
    let now = START + 3 * SECOND;
    assert_eq!(limits.remaining(limit, &0, now).requests, 0);
    let (at, _) = limits.peek(&[demand(4)], 0, now).unwrap();
    assert_eq!(at - START, 5 * SECOND);
    assert_eq!(limits.remaining(limit, &0, at).requests, 6);
    // Older reports have no effect, and future ones are rejected.
    limits
        .record(&[demand(9)], START - 9 * SECOND, now)
        .unwrap();
    assert_eq!(limits.remaining(limit, &0, now).requests, 0);
    let future = limits.record(&[demand(1)], now + 2 * SECOND, now);
    assert!(matches!(future, Err(RecordError::TooEarly)));
}

#[test]
fn latest_time_is_used_when_the_clock_goes_back() {
    let mut limits = Limits::new(1);
    let limit = limits.add(bucket("1/s", 1)).unwrap();
    assert_eq!(at(&mut limits, limit, 0, START), 0);
    let hour_before = START - 3_600 * SECOND;
    assert_eq!(
        limits.reserve(&one(limit, 0), hour_before, MAX_WAIT),
        Decision::At {
            at: START + SECOND,
            limit
        }
    );
}
