//! Tests that compare the token bucket with `governor`, an independent GCRA, and check the guarantees of every algorithm.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroU32,
    time::Duration,
};

use governor::{
    InsufficientCapacity, Quota, RateLimiter,
    clock::FakeRelativeClock,
    state::{InMemoryState, NotKeyed},
};
use limits::{Algorithm, Alignment, Decision, Demand, LimitId, Limits, Refusal};

use crate::bounds::max_in;

const SECOND: u64 = 1_000_000_000;

/// Operations per test: 100,000, or `LIMITS_OPERATIONS`.
fn operations() -> u64 {
    match std::env::var("LIMITS_OPERATIONS") {
        Ok(number) => number.parse().expect("a number"),
        Err(_) => 100_000,
    }
}

fn one(limit: LimitId, requests: u64) -> [Demand<u32>; 1] {
    [Demand {
        limit,
        key: 0,
        requests,
    }]
}

#[test]
fn token_bucket_matches_governor() {
    let mut random = fastrand::Rng::with_seed(18);
    let mut done = 0;
    while done < operations() {
        // Intervals in whole nanoseconds.
        let interval = [1, 1_000, 3_333_333, 1_000_000, SECOND, 86_400 * SECOND][random.usize(..6)];
        let burst = random.u32(1..=50);
        let clock = FakeRelativeClock::default();
        let quota = Quota::with_period(Duration::from_nanos(interval))
            .unwrap()
            .allow_burst(NonZeroU32::new(burst).unwrap());
        let theirs: RateLimiter<NotKeyed, InMemoryState, _, _> =
            RateLimiter::direct_with_clock(quota, clock.clone());
        let mut ours = Limits::new(10);
        let rate = limits::Rate::new(1, Duration::from_nanos(interval)).unwrap();
        let burst = u64::from(burst);
        let limit = ours.add(Algorithm::TokenBucket { rate, burst }).unwrap();
        let mut now = 0;
        for _ in 0..1_000 {
            let step = random.u64(0..=interval * 2) * random.u64(0..=burst) / burst;
            clock.advance(Duration::from_nanos(step));
            now += step;
            let requests = random.u32(1..=u32::try_from(burst + 2).unwrap());
            let theirs = theirs.check_n(NonZeroU32::new(requests).unwrap());
            let found = ours.reserve(&one(limit, requests.into()), now, Duration::ZERO);
            match theirs {
                Ok(Ok(())) => assert_eq!(found, Decision::Now),
                Ok(Err(until)) => {
                    let retry_after = until.wait_time_from(governor::clock::Clock::now(&clock));
                    let reason = Refusal::Wait { retry_after };
                    assert_eq!(found, Decision::Refused { limit, reason });
                }
                Err(InsufficientCapacity(most)) => {
                    let reason = Refusal::TooMany { max: most.into() };
                    assert_eq!(found, Decision::Refused { limit, reason });
                }
            }
            done += 1;
        }
    }
}

/// Slots and numbers of requests of admitted calls.
#[derive(Default)]
struct Released(Vec<(u64, u64)>);

impl Released {
    /// Checks that no window exceeds the algorithm's guarantee.
    #[track_caller]
    fn check(&mut self, algorithm: &Algorithm) {
        self.0.sort_unstable();
        let mut sums = vec![0];
        for (_, requests) in &self.0 {
            sums.push(sums[sums.len() - 1] + requests);
        }
        for start in 0..self.0.len() {
            // Windows that end just after a call are the fullest; some of each length are sufficient.
            let lengths = [1, 2, 3, 5, 8, 13, 40, 100, 300, 1_000];
            for end in lengths.map(|length| start + length) {
                let Some((at, _)) = self.0.get(end - 1) else {
                    break;
                };
                let window = at - self.0[start].0 + 1;
                let found = sums[end] - sums[start];
                let most = max_in(algorithm, window);
                assert!(
                    found <= most,
                    "{found} > {most} in {window} ns: {algorithm:?}"
                );
            }
        }
    }
}

fn algorithms(random: &mut fastrand::Rng) -> Vec<Algorithm> {
    let requests = random.u64(1..=300);
    let per = [1, 7, 1_000, 60_000][random.usize(..4)];
    let window = Duration::from_millis(per);
    let rate = limits::Rate::new(requests, window).expect("a valid rate");
    let burst = random.u64(1..=requests * 2);
    let limit = requests;
    let step = window / [1, 2, 10, 1_000][random.usize(..4)];
    vec![
        Algorithm::TokenBucket { rate, burst },
        Algorithm::SteppedBucket { rate, burst },
        Algorithm::LeakyBucket {
            rate,
            capacity: burst,
        },
        Algorithm::TokenBucket { rate, burst: 1 },
        Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::Clock,
        },
        Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::FirstCall,
        },
        Algorithm::SlidingLog { limit, window },
        Algorithm::SlidingCounter { limit, window },
        Algorithm::StepWindow {
            limit,
            window,
            step,
        },
        Algorithm::WarmUp {
            rate,
            warm_up: window * 5,
        },
    ]
}

/// A time step: often zero, often about an interval, and sometimes a long pause.
fn step(random: &mut fastrand::Rng, algorithm: &Algorithm) -> u64 {
    let interval = (1..)
        .map(|it| 1 << it)
        .find(|it| max_in(algorithm, *it) > 1 + max_in(algorithm, 1));
    let interval = interval.unwrap_or(SECOND).min(100 * SECOND);
    match random.u8(..) {
        0..=99 => 0,
        100..=252 => random.u64(0..=interval * 2),
        253.. => random.u64(0..=interval * 1_000),
    }
}

#[test]
fn no_window_exceeds_its_guarantee_and_peek_is_minimal() {
    let mut random = fastrand::Rng::with_seed(19);
    let mut done = 0;
    while done < operations() {
        for algorithm in algorithms(&mut random) {
            let mut limits = Limits::new(10);
            let limit = limits.add(algorithm).unwrap();
            let mut released = Released::default();
            let mut now = random.u64(0..=2_000_000 * SECOND);
            let (mut last, mut seen) = (BTreeMap::new(), 0);
            let max_wait = [0, 1_000, SECOND, 30 * SECOND][random.usize(..4)];
            for _ in 0..300 {
                now += step(&mut random, &algorithm);
                // Sometimes the clock goes back.
                let reported = if random.u8(..) == 0 {
                    now.saturating_sub(SECOND)
                } else {
                    now
                };
                // Then the latest time is used.
                seen = reported.max(seen);
                let requests = random.u64(1..=algorithm.max_burst().min(5));
                let demands = one(limit, requests);
                let max_wait_time = Duration::from_nanos(max_wait);
                let Ok((at, _)) = limits.peek(&demands, 0, reported) else {
                    // The queue is full.
                    let decision = limits.reserve(&demands, reported, max_wait_time);
                    assert!(
                        matches!(decision, Decision::Refused { .. }),
                        "{algorithm:?}"
                    );
                    continue;
                };
                let decision = limits.reserve(&demands, reported, max_wait_time);
                match decision {
                    Decision::Now => assert_eq!(at, seen),
                    Decision::At { at: found, .. } => assert_eq!(at, found),
                    Decision::Refused {
                        reason: Refusal::Wait { retry_after },
                        ..
                    } => {
                        assert!(at > seen + max_wait, "{algorithm:?}");
                        assert!(!retry_after.is_zero());
                        // The slot stays the same until its time.
                        let copy = limits.peek(&demands, 0, at - 1).unwrap().0;
                        assert_eq!(copy, at, "{algorithm:?}");
                        assert_eq!(limits.peek(&demands, 0, at).unwrap().0, at, "{algorithm:?}");
                    }
                    Decision::Refused { .. } => panic!("{decision:?}"),
                }
                if let Some(at) = decision.at(seen) {
                    // A smaller call may fit into a gap before a larger one.
                    let last = last.entry(requests).or_insert(0);
                    assert!(at >= *last, "out of order: {algorithm:?}");
                    *last = at;
                    released.0.push((at, requests));
                }
            }
            released.check(&algorithm);
            done += 300;
        }
    }
}

#[test]
fn step_window_admits_calls_up_to_a_step_later_than_a_sliding_log() {
    let mut random = fastrand::Rng::with_seed(20);
    for _ in 0..operations() / 300 {
        let limit = random.u64(1..=20);
        let step = random.u64(1..=1_000);
        let window = step * random.u64(1..=30);
        let [window_time, step_time] = [window, step].map(Duration::from_nanos);
        let mut limits = Limits::new(10);
        let algorithm = Algorithm::StepWindow {
            limit,
            window: window_time,
            step: step_time,
        };
        let id = limits.add(algorithm).unwrap();
        let mut log: VecDeque<u64> = VecDeque::new();
        let mut now = random.u64(..1_000_000);
        for _ in 0..300 {
            now += random.u64(0..=window / limit * 2);
            while log.front().is_some_and(|at| at + window <= now) {
                log.pop_front();
            }
            let demands = one(id, 1);
            let (at, _) = limits.peek(&demands, 0, now).unwrap();
            let over = (log.len() + 1).saturating_sub(usize::try_from(limit).unwrap());
            let by_log = match over.checked_sub(1) {
                Some(index) => log[index] + window,
                None => now,
            };
            assert!(at >= by_log && at <= by_log + step, "{at} {by_log} {step}");
            if limits.reserve(&demands, now, Duration::ZERO) == Decision::Now {
                log.push_back(now);
            }
        }
    }
}

/// Calls of several keys, each under two limits of its own and a global one.
#[test]
fn calls_stay_within_several_limits() {
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..operations() / 1_000 {
        let mut limits = Limits::new(100);
        let own = Algorithm::token_bucket("7/s", random.u64(1..=5)).unwrap();
        let second = Algorithm::SlidingLog {
            limit: 5,
            window: Duration::from_secs(1),
        };
        let whole = Algorithm::token_bucket("20/s", random.u64(1..=20)).unwrap();
        let [own_id, second_id] = [own, second].map(|it| limits.add(it).unwrap());
        let whole_id = limits.add(whole).unwrap();
        let mut of_all = Released::default();
        let mut of_each: [Released; 5] = std::array::from_fn(|_| Released::default());
        let mut last = [0; 5];
        let mut now = 1_000 * SECOND;
        for _ in 0..1_000 {
            now += random.u64(0..SECOND / 15);
            let key = random.u32(..5);
            let demand = |limit, key| Demand {
                limit,
                key,
                requests: 1,
            };
            let demands = [
                demand(own_id, key),
                demand(second_id, key),
                demand(whole_id, 99),
            ];
            let before = [own_id, second_id].map(|id| limits.remaining(id, &key, now));
            let whole_before = limits.remaining(whole_id, &99, now);
            let max_wait = Duration::from_secs(random.u64(0..10));
            match limits.reserve(&demands, now, max_wait).at(now) {
                Some(at) => {
                    of_all.0.push((at, 1));
                    of_each[key as usize].0.push((at, 1));
                    assert!(at >= last[key as usize], "out of order");
                    last[key as usize] = at;
                }
                None => {
                    assert_eq!(
                        [own_id, second_id].map(|id| limits.remaining(id, &key, now)),
                        before
                    );
                    assert_eq!(limits.remaining(whole_id, &99, now), whole_before);
                }
            }
        }
        of_all.check(&whole);
        for released in &mut of_each {
            released.check(&own);
            released.check(&second);
        }
    }
}

/// Waiting calls are rescheduled at random times.
#[test]
fn rescheduled_calls_do_not_exceed_the_limit() {
    let mut random = fastrand::Rng::with_seed(22);
    let mut done = 0;
    while done < operations() {
        for algorithm in algorithms(&mut random) {
            let mut limits = Limits::new(10);
            let id = limits.add(algorithm).unwrap();
            let mut released = Released::default();
            // Slots and numbers of requests of waiting calls.
            let mut waiting: Vec<(u64, u64)> = Vec::new();
            let max_wait = Duration::from_secs(30);
            let mut now = 1_000_000 * SECOND;
            for _ in 0..200 {
                now += step(&mut random, &algorithm);
                let begun = waiting.partition_point(|(at, _)| *at <= now);
                released.0.extend(waiting.drain(..begun));
                match random.u8(..8) {
                    1 => reschedule(&mut limits, id, &mut waiting, now),
                    _ => {
                        let requests = random.u64(1..=algorithm.max_burst().min(3));
                        match limits.reserve(&one(id, requests), now, max_wait) {
                            Decision::Now => released.0.push((now, requests)),
                            Decision::At { at, .. } => waiting.push((at, requests)),
                            Decision::Refused { .. } => {}
                        }
                        waiting.sort_unstable();
                    }
                }
            }
            released.0.extend(waiting);
            released.check(&algorithm);
            done += 200;
        }
    }
}

/// Reschedules all waiting calls.
fn reschedule(limits: &mut Limits<u32>, id: LimitId, waiting: &mut Vec<(u64, u64)>, now: u64) {
    let demands: Vec<_> = waiting
        .iter()
        .map(|(_, requests)| one(id, *requests))
        .collect();
    let calls: Vec<(&[Demand<u32>], u64)> = demands
        .iter()
        .zip(waiting.iter())
        .map(|(demands, (at, _))| (&demands[..], *at))
        .collect();
    let mut planned = Vec::new();
    limits.reschedule(&calls, now, |index, decision| {
        planned.extend(decision.at(now).map(|at| (at, waiting[index].1)));
    });
    planned.sort_unstable();
    *waiting = planned;
}

/// Each call has a limit of its key, one of another kind, and a global one.
#[test]
fn rescheduled_calls_stay_within_several_limits() {
    let mut random = fastrand::Rng::with_seed(23);
    for _ in 0..operations() / 300 {
        let some = algorithms(&mut random);
        let all = [some[0], some[random.usize(..some.len())], some[3]];
        let mut limits = Limits::new(100);
        let ids = all.map(|algorithm| limits.add(algorithm).unwrap());
        let demands = |key: u32| {
            ids.map(|limit| Demand {
                limit,
                key: if limit == ids[2] { 9 } else { key },
                requests: 1,
            })
        };
        let calls: [[Demand<u32>; 3]; 3] = [demands(0), demands(1), demands(2)];
        let mut gone: Vec<(u64, usize)> = Vec::new();
        let mut waiting: Vec<(u64, usize)> = Vec::new();
        let max_wait = Duration::from_secs(100);
        let mut now = 1_000_000 * SECOND;
        for _ in 0..300 {
            let of = all[random.usize(..3)];
            now += step(&mut random, &of);
            waiting.sort_unstable();
            let begun = waiting.partition_point(|(at, _)| *at <= now);
            gone.extend(waiting.drain(..begun));
            match random.u8(..8) {
                1 => {
                    let queue: Vec<(&[Demand<u32>], u64)> = waiting
                        .iter()
                        .map(|(at, key)| (&calls[*key][..], *at))
                        .collect();
                    let mut planned = Vec::new();
                    limits.reschedule(&queue, now, |index, decision| {
                        planned.extend(decision.at(now).map(|at| (at, waiting[index].1)));
                    });
                    waiting = planned;
                }
                _ => {
                    let key = random.usize(..3);
                    if let Some(at) = limits.reserve(&calls[key], now, max_wait).at(now) {
                        waiting.push((at, key));
                    }
                }
            }
        }
        gone.extend(waiting);
        let for_key = |key: usize| {
            Released(
                gone.iter()
                    .filter(|(_, it)| *it == key)
                    .map(|(at, _)| (*at, 1))
                    .collect(),
            )
        };
        for key in 0..3 {
            for_key(key).check(&all[0]);
            for_key(key).check(&all[1]);
        }
        Released(gone.iter().map(|(at, _)| (*at, 1)).collect()).check(&all[2]);
    }
}
