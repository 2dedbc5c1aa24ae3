//! Tests that compare every algorithm with a simple model over the list of all admitted calls.

use std::time::Duration;

use limits::{Algorithm, Alignment, Decision, Demand, Limits};

/// Times and numbers of requests of all admitted calls.
type Gone = Vec<(i128, i128)>;

/// Whether a number of requests is admitted at a time, by the definition of the algorithm.
type Allows = Box<dyn Fn(&Gone, i128, i128) -> bool>;

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).expect("a short time")
}

fn within(gone: &Gone, from: i128, to: i128) -> i128 {
    let of = gone.iter().filter(|(at, _)| *at > from && *at <= to);
    of.map(|(_, requests)| requests).sum()
}

/// The level of a leaking bucket after all admitted calls, in units of 1/`per` request.
fn level(gone: &Gone, requests: i128, per: i128, now: i128) -> i128 {
    let (mut level, mut last) = (0, 0);
    for (at, count) in gone {
        level = (level - (at - last) * requests).max(0) + count * per;
        last = *at;
    }
    (level - (now - last) * requests).max(0)
}

fn model(algorithm: Algorithm) -> Allows {
    let parts = |rate: limits::Rate| (i128::from(rate.requests()), i128::from(rate.nanos()));
    match algorithm {
        Algorithm::TokenBucket { rate, burst } => bucket(parts(rate), burst),
        Algorithm::SteppedBucket { rate, burst } => {
            let (tokens, step) = rate.written();
            let (tokens, step, burst) = (i128::from(tokens), i128::from(step), i128::from(burst));
            Box::new(move |gone, requests, now| {
                let Some((first, _)) = gone.first() else {
                    return requests <= burst;
                };
                let (mut left, mut steps) = (burst, 0);
                for (at, count) in gone.iter().chain([&(now, 0)]) {
                    let now = (at - first) / step;
                    left = (left + (now - steps) * tokens).min(burst) - count;
                    steps = now;
                }
                requests <= left
            })
        }
        Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::Clock,
        } => {
            let window = nanos(window);
            Box::new(move |gone, requests, now| {
                within(gone, now - now % window - 1, now) + requests <= i128::from(limit)
            })
        }
        Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::FirstCall,
        } => {
            let window = nanos(window);
            Box::new(move |gone, requests, now| {
                let (mut start, mut count) = (None, 0);
                for (at, of) in gone.iter().chain([&(now, requests)]) {
                    if start.is_none_or(|start| *at >= start + window) {
                        (start, count) = (Some(*at), 0);
                    }
                    count += of;
                }
                count <= i128::from(limit)
            })
        }
        Algorithm::SlidingLog { limit, window } => {
            let window = nanos(window);
            Box::new(move |gone, requests, now| {
                within(gone, now - window, now) + requests <= i128::from(limit)
            })
        }
        Algorithm::SlidingCounter { limit, window } => {
            let window = nanos(window);
            Box::new(move |gone, requests, now| {
                let start = now - now % window;
                let before = within(gone, start - window - 1, start - 1);
                let here = within(gone, start - 1, now);
                before * (window - (now - start)) + (here + requests) * window
                    <= i128::from(limit) * window
            })
        }
        Algorithm::StepWindow {
            limit,
            window,
            step,
        } => {
            let (window, step) = (nanos(window), nanos(step));
            // The calls of a step count at the time of the latest one.
            Box::new(move |gone, requests, now| {
                let of_step = |at: i128| gone.iter().filter(move |(it, _)| it / step == at / step);
                let latest = |at: i128| of_step(at).map(|(at, _)| *at).max().unwrap_or(at);
                let counted = gone.iter().filter(|(at, _)| latest(*at) + window > now);
                counted.map(|(_, requests)| requests).sum::<i128>() + requests <= i128::from(limit)
            })
        }
        other => panic!("no model of {other:?}"),
    }
}

fn bucket((requests, per): (i128, i128), burst: u64) -> Allows {
    Box::new(move |gone, count, now| {
        level(gone, requests, per, now) + count * per <= i128::from(burst) * per
    })
}

fn algorithm(random: &mut fastrand::Rng) -> Algorithm {
    let window = Duration::from_nanos(random.u64(1..=10_000));
    let limit = random.u64(1..=20);
    let rate = limits::Rate::new(limit, window).expect("a valid rate");
    let burst = random.u64(1..=20);
    match random.u8(..9) {
        0 => Algorithm::TokenBucket { rate, burst },
        1 | 2 => Algorithm::TokenBucket { rate, burst: 1 },
        3 => Algorithm::SteppedBucket { rate, burst },
        4 => Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::Clock,
        },
        5 => Algorithm::FixedWindow {
            limit,
            window,
            aligned: Alignment::FirstCall,
        },
        6 => Algorithm::SlidingLog { limit, window },
        7 => Algorithm::SlidingCounter { limit, window },
        _ => Algorithm::StepWindow {
            limit,
            window,
            step: window.mul_f64(random.f64()).max(Duration::from_nanos(1)),
        },
    }
}

#[test]
fn each_algorithm_matches_its_model() {
    let seeds = std::env::var("LIMITS_OPERATIONS").map_or(100_000, |it| it.parse().unwrap()) / 100;
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(seed);
        let algorithm = algorithm(&mut random);
        let allows = model(algorithm);
        let mut limits = Limits::new(1);
        let limit = limits.add(algorithm).unwrap();
        let mut gone = Gone::new();
        let mut now = random.u64(100_000..200_000);
        limits.reserve(
            &[Demand {
                limit,
                key: (),
                requests: 1,
            }],
            now,
            Duration::ZERO,
        );
        gone.push((now.into(), 1));
        for _ in 0..100 {
            now += random.u64(0..2_000) * u64::from(random.bool());
            let requests = random.u64(1..=algorithm.max_burst().min(4));
            let demands = [Demand {
                limit,
                key: (),
                requests,
            }];
            let (at, _) = limits.peek(&demands, 0, now).unwrap();
            let allowed = |at: u64| allows(&gone, requests.into(), at.into());
            // Rounding up to a whole nanosecond does not delay the next slot.
            let is_paced = matches!(
                algorithm,
                Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. }
            );
            let slack = u64::from(is_paced);
            assert!(allowed(at + slack), "seed {seed}: too early, {algorithm:?}");
            assert!(
                at == now || !allowed(at - 1),
                "seed {seed}: too late, {algorithm:?}"
            );
            let decision = limits.reserve(&demands, now, Duration::ZERO);
            assert_eq!(decision == Decision::Now, at == now);
            if at == now {
                gone.push((now.into(), requests.into()));
            }
        }
    }
}

#[test]
fn constant_demand_gets_the_mean_rate_of_every_algorithm() {
    let window = Duration::from_secs(10);
    let rate: limits::Rate = "10/10s".parse().unwrap();
    let (limit, burst, capacity) = (10, 5, 5);
    let step = |step| Algorithm::StepWindow {
        limit,
        window,
        step,
    };
    for algorithm in [
        Algorithm::TokenBucket { rate, burst },
        Algorithm::SteppedBucket { rate, burst: 10 },
        Algorithm::TokenBucket { rate, burst: 1 },
        Algorithm::LeakyBucket { rate, capacity },
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
        step(window),
        step(window / 4),
        step(window / 1_000),
        step(Duration::from_secs(3)),
        Algorithm::WarmUp {
            rate,
            warm_up: window,
        },
    ] {
        let mut limits = Limits::new(1);
        let limit = limits.add(algorithm).unwrap();
        let demands = [Demand {
            limit,
            key: (),
            requests: 1,
        }];
        // A call is always waiting, and is made at its earliest slot.
        let begin = 1_000_000_000_000_007;
        let (mut now, mut went) = (begin, 0_u64);
        while went < 10_000 {
            (now, _) = limits.peek(&demands, 0, now).unwrap();
            let decision = limits.reserve(&demands, now, Duration::ZERO);
            assert_eq!(decision, Decision::Now, "{algorithm:?}");
            went += 1;
        }
        // One per second. A sliding counter assumes an evenly used previous window, so it still counts one of ten.
        let in_ten_seconds = match algorithm {
            Algorithm::SlidingCounter { .. } => 9,
            _ => 10,
        };
        let expected = in_ten_seconds * ((now - begin) / 1_000_000) / 10_000;
        let stated = algorithm.mean_rate().requests_in(now - begin);
        assert!(expected.abs_diff(stated) <= 1, "{algorithm:?}: {stated}");
        let share = went * 1_000 / expected;
        assert!((990..=1_010).contains(&share), "{algorithm:?}: {share} ‰");
    }
}
