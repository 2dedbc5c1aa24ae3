//! Tests of the remaining quota, for every algorithm.

use std::time::Duration;

use limits::{Algorithm, Alignment, Demand, LimitId, Limits, Rate};

const SECOND: u64 = 1_000_000_000;

fn algorithms(random: &mut fastrand::Rng) -> [Algorithm; 9] {
    let limit = random.u64(1..=30);
    let window = Duration::from_millis([7, 1_000, 60_000][random.usize(..3)]);
    let rate = Rate::new(limit, window).expect("a valid rate");
    let burst = random.u64(1..=2 * limit);
    let fixed = |aligned| Algorithm::FixedWindow {
        limit,
        window,
        aligned,
    };
    [
        Algorithm::TokenBucket { rate, burst },
        Algorithm::TokenBucket { rate, burst: 1 },
        Algorithm::SteppedBucket { rate, burst },
        Algorithm::LeakyBucket {
            rate,
            capacity: burst,
        },
        fixed(Alignment::Clock),
        fixed(Alignment::FirstCall),
        Algorithm::SlidingLog { limit, window },
        Algorithm::SlidingCounter { limit, window },
        Algorithm::StepWindow {
            limit,
            window,
            step: window / 10,
        },
    ]
}

fn one(limit: LimitId, requests: u64) -> [Demand<u32>; 1] {
    [Demand {
        limit,
        key: 0,
        requests,
    }]
}

#[test]
fn remaining_requests_are_admitted_and_one_more_at_the_stated_time() {
    let mut random = fastrand::Rng::with_seed(20);
    for _ in 0..200 {
        for algorithm in algorithms(&mut random) {
            let most = algorithm.max_burst();
            let mut limits = Limits::new(10);
            let limit = limits.add(algorithm).expect("valid parameters");
            let mut now = SECOND;
            for _ in 0..30 {
                now += random.u64(0..SECOND / 5);
                let max_wait = Duration::from_millis([0, 1_000][random.usize(..2)]);
                limits.reserve(&one(limit, random.u64(1..=most)), now, max_wait);
                let remaining = limits.remaining(limit, &0, now);
                if remaining.requests > 0 {
                    let goes = limits.peek(&one(limit, remaining.requests), 0, now);
                    assert_eq!(goes, Ok((now, None)), "{algorithm:?}");
                }
                if remaining.requests == most {
                    assert_eq!(remaining.more_at, now, "{algorithm:?}");
                } else if let Ok((at, _)) = limits.peek(&one(limit, remaining.requests + 1), 0, now)
                {
                    // A full queue has no slot.
                    assert_eq!(at, remaining.more_at, "{algorithm:?}");
                    assert!(at > now, "{algorithm:?}");
                }
            }
        }
    }
}
