//! Tests that each call gets the earliest admissible slot, including gaps before existing slots. A search through all
//! times finds the expected slot: it applies the definition of each limit to all granted slots.

use std::time::Duration;

use limits::{Algorithm, Alignment, Decision, Demand, LimitId, Limits, Refusal};

const SECOND: u64 = 1_000_000_000;

/// Slots with their numbers of requests.
type Grants = Vec<(u64, u64)>;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a short time")
}

/// Whether a limit permits these calls, which are in time order.
fn permits(algorithm: Algorithm, calls: &Grants) -> bool {
    let sum = |from: u64, to: u64| -> u64 {
        let within = calls.iter().filter(|(at, _)| from <= *at && *at <= to);
        within.map(|(_, requests)| requests).sum()
    };
    match algorithm {
        Algorithm::TokenBucket { rate, burst } => {
            assert_eq!(rate.requests(), 1, "a whole number of nanoseconds");
            calls.iter().enumerate().all(|(first, (start, _))| {
                let mut taken = 0;
                calls[first..].iter().all(|(at, requests)| {
                    taken += requests;
                    taken * rate.nanos() <= burst * rate.nanos() + (at - start)
                })
            })
        }
        Algorithm::FixedWindow { limit, window, .. } => calls.iter().all(|(at, _)| {
            let start = at - at % nanos(window);
            sum(start, start + nanos(window) - 1) <= limit
        }),
        Algorithm::SlidingLog { limit, window } => {
            let mut ends = calls.iter().map(|(at, _)| *at);
            ends.all(|end| sum(end - nanos(window) + 1, end) <= limit)
        }
        Algorithm::SlidingCounter { limit, window } => calls.iter().all(|(at, _)| {
            let window = nanos(window);
            let start = at - at % window;
            let before = sum(start - window, start - 1) * (start + window - at);
            before + sum(start, *at) * window <= limit * window
        }),
        // The calls of a step count at the time of the latest one so far.
        Algorithm::StepWindow {
            limit,
            window,
            step,
        } => calls.iter().all(|(end, _)| {
            let (window, step) = (nanos(window), nanos(step));
            let so_far = || calls.iter().filter(|(at, _)| at <= end);
            let latest = |of: u64| {
                let of_step = so_far().filter(|(at, _)| at / step == of / step);
                of_step.map(|(at, _)| *at).max()
            };
            let counted =
                so_far().filter(|(at, _)| latest(*at).is_some_and(|it| it + window > *end));
            counted.map(|(_, requests)| requests).sum::<u64>() <= limit
        }),
        other => panic!("no definition of {other:?}"),
    }
}

fn with(calls: &Grants, call: (u64, u64)) -> Grants {
    let mut all = calls.clone();
    all.insert(calls.partition_point(|(at, _)| *at <= call.0), call);
    all
}

fn bucket(interval: u64, burst: u64) -> Algorithm {
    let rate = limits::Rate::new(1, Duration::from_nanos(interval)).expect("a valid rate");
    Algorithm::TokenBucket { rate, burst }
}

fn algorithm(random: &mut fastrand::Rng) -> Algorithm {
    let limit = random.u64(2..=6);
    let window = Duration::from_nanos(random.u64(5..=40));
    match random.u8(..6) {
        0 | 1 => bucket(random.u64(1..=8), random.u64(1..=8)),
        2 => Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::Clock,
        },
        3 => Algorithm::SlidingLog { limit, window },
        4 => Algorithm::SlidingCounter { limit, window },
        _ => Algorithm::StepWindow {
            limit,
            window,
            step: window / random.u32(1..=4),
        },
    }
}

#[test]
fn call_gets_the_earliest_slot_that_all_limits_admit() {
    let (mut between, mut later) = (0, 0);
    let seeds = std::env::var("LIMITS_OPERATIONS").map_or(60, |it| it.parse().unwrap());
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let kinds = [
            bucket(random.u64(1..=30), random.u64(1..=3)),
            algorithm(&mut random),
            algorithm(&mut random),
        ];
        let mut limits = Limits::new(100);
        let ids = kinds.map(|kind| limits.add(kind).expect("valid parameters"));
        // One list per user for the first limit, and one for each of the two shared limits.
        let mut granted: Vec<Grants> = vec![Grants::new(); 8];
        let mut now = 1_000;
        for _ in 0..50 {
            now += random.u64(..9);
            let user = random.u32(..6);
            let requests = random.u64(1..=2);
            let of: Vec<usize> = (0..3).filter(|_| random.u8(..5) > 0).collect();
            let place = |it: usize| if it == 0 { user as usize } else { 5 + it };
            let demands: Vec<Demand<u32>> = of
                .iter()
                .map(|it| Demand {
                    limit: ids[*it],
                    key: if *it == 0 { user } else { 0 },
                    requests,
                })
                .collect();
            if demands.is_empty() || of.iter().any(|it| kinds[*it].max_burst() < requests) {
                continue;
            }
            let from = now + random.u64(..4).saturating_sub(2) * random.u64(..60);
            let permitted = |at: &u64| {
                of.iter()
                    .all(|it| permits(kinds[*it], &with(&granted[place(*it)], (*at, requests))))
            };
            let expected = (from..).find(permitted).expect("a slot exists");
            let (peeked, _) = limits.peek(&demands, from, now).expect("a slot exists");
            let decision = limits.reserve_from(&demands, from, now, Duration::MAX);
            let context = || format!("seed {seed}: {kinds:?} at {now}: {requests} of {of:?}");
            assert_eq!(decision.at(now), Some(expected), "{}", context());
            assert_eq!(peeked, expected, "{}", context());
            for it in &of {
                let all = &mut granted[place(*it)];
                between += u32::from(all.last().is_some_and(|(last, _)| *last > expected));
                *all = with(all, (expected, requests));
                // Older slots have no effect any more.
                all.retain(|(at, _)| *at + 500 > now);
            }
            later += u32::from(expected > from);
        }
    }
    assert!(between > 300 && later > 300, "{between} {later}");
}

fn demand(limit: LimitId, key: u32) -> Demand<u32> {
    Demand {
        limit,
        key,
        requests: 1,
    }
}

/// The example of `Limits::earliest`.
#[test]
fn slot_moves_until_all_limits_agree() {
    const MILLI: u64 = SECOND / 1_000;
    let mut limits = Limits::new(10);
    let a = limits.add(bucket(100 * MILLI, 1)).unwrap();
    let window = Algorithm::FixedWindow {
        limit: 2,
        window: Duration::from_secs(1),
        aligned: Alignment::Clock,
    };
    let b = limits.add(window).unwrap();
    let second = 1_000_000 * SECOND;
    let max_wait = Duration::from_secs(1);
    limits.record(&[demand(b, 0); 2], second, second).unwrap();
    let now = second + 800 * MILLI;
    limits.reserve(&[demand(a, 0)], now, max_wait);
    limits.reserve_from(&[demand(a, 0)], second + SECOND, now, max_wait);
    let call = [demand(a, 0), demand(b, 0)];
    let decision = limits.reserve(&call, second + 850 * MILLI, max_wait);
    let at = second + 1_100 * MILLI;
    assert_eq!(decision, Decision::At { at, limit: a });
}

#[test]
fn bookings_far_ahead_do_not_delay_other_users() {
    let window = Duration::from_secs(1);
    for whole in [
        Algorithm::token_bucket("100/s", 10).unwrap(),
        Algorithm::FixedWindow {
            limit: 100,
            window,
            aligned: Alignment::Clock,
        },
        Algorithm::FixedWindow {
            limit: 100,
            window,
            aligned: Alignment::FirstCall,
        },
        Algorithm::SlidingLog { limit: 100, window },
        Algorithm::SlidingCounter { limit: 100, window },
        Algorithm::StepWindow {
            limit: 100,
            window,
            step: window / 10,
        },
        Algorithm::SteppedBucket {
            rate: "100/s".parse().unwrap(),
            burst: 100,
        },
        Algorithm::WarmUp {
            rate: "100/s".parse().unwrap(),
            warm_up: window,
        },
    ] {
        let mut limits = Limits::new(10);
        let user = limits.add(bucket(SECOND, 1)).unwrap();
        let app = limits.add(whole).unwrap();
        // Calls are never made exactly at a booked slot.
        let mut now = 1_000_000 * SECOND;
        let day = Duration::from_secs(86_400);
        let mut booked = 0;
        for _ in 0..5_000 {
            let decision = limits.reserve(&[demand(app, 0), demand(user, 1)], now, day);
            booked += u64::from(decision.at(now).is_some());
        }
        assert!(booked >= 30, "{whole:?}: {booked}");
        // Another user never waits for the booked slots.
        now -= SECOND / 2;
        for _ in 0..600 {
            now += SECOND;
            let other = limits.reserve(&[demand(app, 0), demand(user, 2)], now, Duration::ZERO);
            assert_eq!(other, Decision::Now, "{whole:?}");
        }
    }
}

#[test]
fn booking_is_refused_while_the_list_is_full() {
    let mut limits = Limits::new(10);
    let user = limits.add(bucket(SECOND, 1)).unwrap();
    let app = limits.add(bucket(SECOND / 100, 10)).unwrap();
    let day = Duration::from_secs(86_400);
    let now = 1_000_000 * SECOND;
    let both = [demand(app, 0), demand(user, 1)];
    let decisions: Vec<Decision> = (0..4_100)
        .map(|_| limits.reserve(&both, now, day))
        .collect();
    let booked = decisions.iter().filter(|it| it.at(now).is_some()).count();
    assert_eq!(booked, 1 + 4_096);
    let Decision::Refused { limit, reason } = decisions[4_099] else {
        panic!("{:?}", decisions[4_099]);
    };
    let retry_after = Duration::from_secs(1);
    assert_eq!((limit, reason), (app, Refusal::Wait { retry_after }));
    // The earliest slot of the refused call is still reported.
    assert_eq!(
        limits.peek(&both, 0, now),
        Ok((now + 4_097 * SECOND, Some(user)))
    );
    // The user's limit has not counted the refused call, and an entry is free once the first slot has passed.
    let (next, _) = limits.peek(&[demand(user, 1)], 0, now).unwrap();
    assert_eq!(next, now + 4_097 * SECOND);
    let later = limits.reserve(&both, now + SECOND, day);
    assert_eq!(later.at(now + SECOND), Some(now + 4_097 * SECOND));
}
