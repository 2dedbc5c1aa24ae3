//! Tests of the example runs in a well-known article on rate limits. Comments give the published output. If the result
//! of this library differs, they also give the reason.

use std::time::Duration;

use limiter::replay::all_algorithms;
use limits::{
    Algorithm, Decision, Demand, Limit, Limits, Rate,
    rules::{ConfigErrors, Rules},
};

const SECOND: u64 = 1_000_000_000;
/// A full minute, at which windows aligned to the clock start.
const START: u64 = 60_000_000 * SECOND;

/// Decisions of an algorithm on calls for one request each, at these times.
fn decisions(algorithm: Algorithm, times: impl IntoIterator<Item = u64>) -> Vec<Decision> {
    let mut limits = Limits::new(1);
    let limit = limits.add(algorithm).expect("valid numbers");
    let decide = |now| {
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        limits.reserve(&[demand], now, Duration::ZERO)
    };
    times.into_iter().map(decide).collect()
}

/// Numbers of the calls that passed.
fn passed(decisions: &[Decision]) -> Vec<usize> {
    let numbered = decisions.iter().enumerate();
    let passed = numbered.filter(|(_, decision)| **decision == Decision::Now);
    passed.map(|(number, _)| number).collect()
}

fn rate(requests: u64, seconds: u64) -> Rate {
    Rate::new(requests, Duration::from_secs(seconds)).expect("a valid rate")
}

/// Ten concurrent calls without a limit.
fn unlimited() -> String {
    let mut limits = Limits::<()>::new(1);
    let free = (0..10).filter(|_| limits.reserve(&[], START, Duration::ZERO) == Decision::Now);
    // The article prints: 10 in 0.003 s
    // No threads are started here, so no time passes.
    format!("{} in 0 s", free.count())
}

/// All algorithms at ten per second.
fn ten_per_second() -> Vec<(&'static str, Algorithm)> {
    let algorithms = all_algorithms(rate(10, 1)).into_iter();
    let algorithm = |(name, rules): (_, Result<Rules, ConfigErrors>)| {
        let rules = rules.expect("a valid rule");
        (name, rules.limits[0].rules[0].limit.algorithm)
    };
    algorithms.map(algorithm).collect()
}

/// Ten calls, one per second, under a limit of ten per second.
fn one_per_second((_, algorithm): &(&str, Algorithm)) -> String {
    let times = (0..10).map(|number| START + number * SECOND);
    // The article prints: 10 of 10, one a second, at a limit of 10/s
    format!("{} of 10", passed(&decisions(*algorithm, times)).len())
}

fn ten_in_quarters(algorithm: Algorithm) -> String {
    let times = (0..10).map(|number| START + number * SECOND / 4);
    let passed = passed(&decisions(algorithm, times));
    let numbers: Vec<String> = passed.iter().map(|number| format!("#{number}")).collect();
    format!("{} of 10: {}", passed.len(), numbers.join(", "))
}

/// A warm-up limiter of one per second with ten calls, four per second.
fn warm_up() -> String {
    // The article prints: 2 of 10: #0, #6
    // It starts cold: the first call costs 1.5 s, which delays the next one.
    ten_in_quarters(Algorithm::WarmUp {
        rate: rate(1, 1),
        warm_up: Duration::from_secs(1),
    })
}

/// The same calls without a warm-up.
fn burst_of_one() -> String {
    // The article prints: -
    // The expected result for one per second.
    ten_in_quarters(Algorithm::TokenBucket {
        rate: rate(1, 1),
        burst: 1,
    })
}

fn sliding(limit: u64, window: u64, before: u64, elapsed: u64, here: u64) -> Vec<Decision> {
    let algorithm = Algorithm::SlidingCounter {
        limit,
        window: Duration::from_secs(window),
    };
    let earlier = (0..before).map(|number| START + number);
    let now = START + (window + elapsed) * SECOND;
    decisions(algorithm, earlier.chain((0..here).map(|_| now)))
}

/// Nine calls in the previous window, and a quarter of the next has passed: 9 · 0.75 + 5 is more than 10.
fn elapsed_share() -> String {
    let found = sliding(10, 60, 9, 15, 5);
    let passed = passed(&found[9..]).len();
    // The article prints: 9 · 0.75 + 5 = 11.75: the fifth is refused
    // The weight depends on the elapsed time; it is not always 75 %.
    format!(
        "{passed} of 5 pass: 9 · 0.75 + {passed} = {}",
        6.75 + f64::from(u8::try_from(passed).unwrap_or(0))
    )
}

/// Forty-two calls in the previous minute, of which three quarters count, and eighteen in this one: 49.5 of 50.
fn forty_two() -> String {
    let found = sliding(50, 60, 42, 15, 19);
    // The article prints: 42 · 45/60 + 18 = 49.5: passes
    format!("{} pass, the next is refused", passed(&found[42..]).len())
}

/// Three hundred per second, with a call every millisecond.
fn whole_milliseconds() -> String {
    let algorithm = Algorithm::TokenBucket {
        rate: rate(300, 1),
        burst: 1,
    };
    let times = (0..10_000).map(|number| START + number * SECOND / 1_000);
    let exact = {
        let mut limits = Limits::new(1);
        let limit = limits.add(algorithm).expect("valid numbers");
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        let is_released = |_: &u32| {
            let at = limits
                .reserve(&[demand], START, Duration::from_secs(60))
                .at(START);
            at.is_some_and(|at| at < START + 10 * SECOND)
        };
        (0..4_000).filter(is_released).count()
    };
    // The article prints: 1000/300 = 3 ms, which is 333/s
    // The interval keeps its remainder. A client that polls every millisecond sees it at the next whole one: every 4 ms.
    format!(
        "{}/s, and {}/s polled every ms",
        exact / 10,
        passed(&decisions(algorithm, times)).len() / 10
    )
}

/// Constant load of twice the limit.
fn constant_overload() -> String {
    let count = |count_refused| {
        let mut limits = Limits::new(1);
        let window = Duration::from_secs(1);
        let log = Limit {
            count_refused,
            ..Algorithm::SlidingLog { limit: 10, window }.into()
        };
        let limit = limits.add(log).expect("valid numbers");
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        let mut times = (0..200).map(|number| START + number * SECOND / 20);
        let pass = |now: &u64| limits.reserve(&[demand], *now, Duration::ZERO) == Decision::Now;
        times.by_ref().filter(pass).count()
    };
    // The article prints: counts refused calls too, so 10 in all
    // A limit that counts refused calls does not recover during the overload.
    format!("{} pass; with count_refused {}", count(false), count(true))
}

#[test]
fn ten_calls_without_a_limit_all_pass() {
    assert_eq!(unlimited(), "10 in 0 s");
}

#[test]
fn ten_calls_one_per_second_pass_every_algorithm_of_ten_per_second() {
    for named in ten_per_second() {
        assert_eq!(one_per_second(&named), "10 of 10", "{named:?}");
    }
}

#[test]
fn warm_up_limiter_admits_two_of_ten() {
    assert_eq!(warm_up(), "2 of 10: #0, #6");
}

#[test]
fn token_bucket_with_a_burst_of_one_admits_three_of_ten() {
    assert_eq!(burst_of_one(), "3 of 10: #0, #4, #8");
}

#[test]
fn sliding_counter_weighs_by_the_elapsed_time() {
    assert_eq!(elapsed_share(), "3 of 5 pass: 9 · 0.75 + 3 = 9.75");
    assert_eq!(forty_two(), "18 pass, the next is refused");
}

#[test]
fn three_hundred_per_second_is_not_one_per_three_milliseconds() {
    assert_eq!(whole_milliseconds(), "300/s, and 250/s polled every ms");
}

#[test]
fn refused_calls_do_not_count() {
    assert_eq!(constant_overload(), "100 pass; with count_refused 10");
}
