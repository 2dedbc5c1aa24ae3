//! Runs that a well-known article on rate limits prints, beside what each algorithm gives here, and why where that differs.

use std::time::Duration;

use limits::{Algorithm, Decision, Demand, Limit, Limits, Rate};

use crate::replay::all_algorithms;

const SECOND: u64 = 1_000_000_000;
/// A full minute, so that windows by the clock begin here.
const START: u64 = 60_000_000 * SECOND;

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What was tried.
    pub name: String,
    /// What was printed of it.
    pub printed: &'static str,
    /// What comes of it here.
    pub here: String,
    /// Why that is so, where it is another.
    pub why: &'static str,
}

/// What an algorithm decides of calls for one request each, at these moments.
fn decisions(algorithm: Algorithm, moments: impl IntoIterator<Item = u64>) -> Vec<Decision> {
    let mut limits = Limits::new(1);
    let limit = limits.add(algorithm).expect("good numbers");
    let decide = |now| {
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        limits.reserve(&[demand], now, Duration::ZERO)
    };
    moments.into_iter().map(decide).collect()
}

/// Which of these calls passed, by number.
fn passed(decisions: &[Decision]) -> Vec<usize> {
    let numbered = decisions.iter().enumerate();
    let passed = numbered.filter(|(_, decision)| **decision == Decision::Now);
    passed.map(|(number, _)| number).collect()
}

fn rate(requests: u64, seconds: u64) -> Rate {
    Rate::new(requests, Duration::from_secs(seconds)).expect("a good rate")
}

/// All runs.
#[must_use]
pub fn runs() -> Vec<Run> {
    let mut runs = vec![unlimited()];
    runs.extend(ten_a_second().iter().map(one_each_second));
    runs.extend([
        warm_up(),
        burst_of_one(),
        elapsed_share(),
        forty_two(),
        whole_milliseconds(),
        constant_overload(),
    ]);
    runs
}

/// Ten calls at once, and no limit.
#[must_use]
pub fn unlimited() -> Run {
    let mut limits = Limits::<()>::new(1);
    let free = (0..10).filter(|_| limits.reserve(&[], START, Duration::ZERO) == Decision::Now);
    Run {
        name: "10 calls at once, no limit".to_owned(),
        printed: "10 in 0.003 s",
        here: format!("{} in 0 s", free.count()),
        why: "without threads to start, time does not pass",
    }
}

/// All algorithms at ten a second.
#[must_use]
pub fn ten_a_second() -> Vec<(String, Algorithm)> {
    all_algorithms(rate(10, 1), 10)
}

/// Ten calls, one a second, where ten a second may go.
#[must_use]
pub fn one_each_second((name, algorithm): &(String, Algorithm)) -> Run {
    let moments = (0..10).map(|number| START + number * SECOND);
    Run {
        name: name.clone(),
        printed: "10 of 10, one a second, at a limit of 10/s",
        here: format!("{} of 10", passed(&decisions(*algorithm, moments)).len()),
        why: "",
    }
}

fn ten_in_quarters(algorithm: Algorithm) -> String {
    let moments = (0..10).map(|number| START + number * SECOND / 4);
    let passed = passed(&decisions(algorithm, moments));
    let numbers: Vec<String> = passed.iter().map(|number| format!("#{number}")).collect();
    format!("{} of 10: {}", passed.len(), numbers.join(", "))
}

/// A warm-up limiter of one a second that is tried ten times, four times a second.
#[must_use]
pub fn warm_up() -> Run {
    Run {
        name: "warm-up of 1 s, 1/s, a call each 250 ms".to_owned(),
        printed: "2 of 10: #0, #6",
        here: ten_in_quarters(Algorithm::WarmUp {
            rate: rate(1, 1),
            warm_up: Duration::from_secs(1),
        }),
        why: "it starts cold: the first call costs 1.5 s, which the next one waits for",
    }
}

/// The same without a warm-up.
#[must_use]
pub fn burst_of_one() -> Run {
    Run {
        name: "token bucket, burst 1, 1/s, a call each 250 ms".to_owned(),
        printed: "-",
        here: ten_in_quarters(Algorithm::TokenBucket {
            rate: rate(1, 1),
            burst: 1,
        }),
        why: "what one expects of `one a second`",
    }
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

/// Nine in the window before, and a quarter of the next has passed: 9 · 0.75 + 5 is more than 10.
#[must_use]
pub fn elapsed_share() -> Run {
    let found = sliding(10, 60, 9, 15, 5);
    let passed = passed(&found[9..]).len();
    Run {
        name: "sliding counter, 10, 9 before, 25 % elapsed, 5 calls".to_owned(),
        printed: "9 · 0.75 + 5 = 11.75: the fifth is refused",
        here: format!(
            "{passed} of 5 pass: 9 · 0.75 + {passed} = {}",
            6.75 + f64::from(u8::try_from(passed).unwrap_or(0))
        ),
        why: "the share is what has elapsed, not always 75 %",
    }
}

/// Forty-two in the minute before, of which three quarters count, and eighteen in this one: 49.5 of 50.
#[must_use]
pub fn forty_two() -> Run {
    let found = sliding(50, 60, 42, 15, 19);
    Run {
        name: "sliding counter, 50, 42 before, 15 s elapsed".to_owned(),
        printed: "42 · 45/60 + 18 = 49.5: passes",
        here: format!("{} pass, the next is refused", passed(&found[42..]).len()),
        why: "",
    }
}

/// Three hundred a second, asked for each millisecond.
#[must_use]
pub fn whole_milliseconds() -> Run {
    let algorithm = Algorithm::TokenBucket {
        rate: rate(300, 1),
        burst: 1,
    };
    let moments = (0..10_000).map(|number| START + number * SECOND / 1_000);
    let exact = {
        let mut limits = Limits::new(1);
        let limit = limits.add(algorithm).expect("good numbers");
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        let go = |_: &u32| {
            let at = limits
                .reserve(&[demand], START, Duration::from_secs(60))
                .at(START);
            at.is_some_and(|at| at < START + 10 * SECOND)
        };
        (0..4_000).filter(go).count()
    };
    Run {
        name: "spacing, 300/s, for 10 s".to_owned(),
        printed: "1000/300 = 3 ms, which is 333/s",
        here: format!(
            "{}/s, and {}/s asked each ms",
            exact / 10,
            passed(&decisions(algorithm, moments)).len() / 10
        ),
        why: "the interval keeps its remainder; who asks each ms only finds it at the next whole one, each 4 ms",
    }
}

/// Twice the limit, all the time.
#[must_use]
pub fn constant_overload() -> Run {
    let count = |count_refused| {
        let mut limits = Limits::new(1);
        let window = Duration::from_secs(1);
        let log = Limit {
            count_refused,
            ..Algorithm::SlidingLog { limit: 10, window }.into()
        };
        let limit = limits.add(log).expect("good numbers");
        let demand = Demand {
            limit,
            key: (),
            requests: 1,
        };
        let mut moments = (0..200).map(|number| START + number * SECOND / 20);
        let pass = |now: &u64| limits.reserve(&[demand], *now, Duration::ZERO) == Decision::Now;
        moments.by_ref().filter(pass).count()
    };
    Run {
        name: "sliding log, 10/s, 20/s for 10 s".to_owned(),
        printed: "counts refused calls too, so 10 in all",
        here: format!("{} pass; with count_refused {}", count(false), count(true)),
        why: "who counts what it refuses never recovers while the overload lasts",
    }
}

/// The runs as a table.
#[must_use]
pub fn table() -> String {
    let mut text = String::new();
    for run in runs() {
        text.push_str(&format!(
            "{}\n  printed: {}\n  here:    {}\n",
            run.name, run.printed, run.here
        ));
        if !run.why.is_empty() {
            text.push_str(&format!("  because {}\n", run.why));
        }
    }
    text
}
