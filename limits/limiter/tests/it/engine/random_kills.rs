//! Tests with random calls, and restarts of the engine from its saved records at random times. No quota may be exceeded, no state lost.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use limiter::serve::engine::Feedback;
use limits::{Algorithm, Alignment};

use super::{Disk, OPTIONS, SECOND, START, fresh, limits, of};
use crate::bounds::max_in;

const LIMITS: &str = "
[limits.bucket]
rules = [{ id = 'r', rate = '20/s', burst = 5 }]
[limits.quota]
rules = [{ id = 'r', rate = '40/20s', algorithm = 'fixed_window' }]
[limits.short]
rules = [{ id = 'r', rate = '4/2s', algorithm = 'fixed_window' }]
[limits.first]
rules = [{ id = 'r', rate = '8/2s', algorithm = 'fixed_window', aligned = 'first_call' }]
[limits.stepped]
rules = [{ id = 'r', rate = '4/s', burst = 9, algorithm = 'stepped_bucket' }]
[limits.log]
rules = [{ id = 'r', rate = '9/3s', algorithm = 'sliding_log' }]
[limits.steps]
rules = [{ id = 'r', rate = '12/5s', algorithm = 'step_window' }, { id = 's', rate = '30/s' }]
[limits.whole]
global = true
rules = [{ id = 'r', rate = '60/s', burst = 30 }]
";

/// Times and sizes of the granted calls, by limit and counter.
type Grants = BTreeMap<(String, String), Vec<(u64, u64)>>;

/// Checks that no window of a rule has more requests than it allows.
#[track_caller]
fn check(grants: &mut Grants, text: &str, seed: u64) {
    let all = limits(text);
    for ((limit, counter), grants) in grants {
        grants.sort_unstable();
        let limit = all.iter().find(|it| it.name == *limit);
        let limit = limit.expect("a known limit");
        for rule in &limit.rules {
            if let Algorithm::FixedWindow {
                limit: max,
                window,
                aligned: Alignment::Clock,
            } = rule.limit.algorithm
            {
                let mut windows: BTreeMap<u128, u64> = BTreeMap::new();
                for (at, requests) in &*grants {
                    *windows
                        .entry(u128::from(*at) / window.as_nanos())
                        .or_default() += requests;
                }
                let largest = windows.values().max().copied().unwrap_or(0);
                assert!(
                    largest <= max,
                    "seed {seed}: {largest} of {max} for {counter}"
                );
            }
            for window in [SECOND / 10, SECOND, 3 * SECOND, 5 * SECOND, 20 * SECOND] {
                let allowed = max_in(&rule.limit.algorithm, window);
                let (mut within, mut first) = (0, 0);
                for (at, requests) in &*grants {
                    within += requests;
                    while grants[first].0 + window <= *at {
                        within -= grants[first].1;
                        first += 1;
                    }
                    let name = &limit.name;
                    assert!(
                        within <= allowed,
                        "seed {seed}: {within} of {allowed} of {name}/{} for {counter} in {window} ns",
                        rule.id
                    );
                }
            }
        }
    }
}

const NAMES: [&str; 7] = [
    "bucket", "quota", "log", "steps", "short", "first", "stepped",
];

#[test]
fn killed_limiter_resumes_with_its_exact_state_and_exceeds_no_quota() {
    for seed in 0..60 {
        run(seed, false);
    }
}

#[test]
fn killed_limiter_resumes_with_its_exact_state_after_changes_of_limits() {
    for seed in 0..60 {
        run(seed, true);
    }
}

fn run(seed: u64, limits_change: bool) {
    let mut random = Rng::with_seed(seed);
    let mut now = START;
    let mut grants = Grants::new();
    let mut text = LIMITS.to_owned();
    let mut engine = fresh(&text);
    let mut disk = Disk::of(&engine);
    for _ in 0..12 {
        for _ in 0..random.usize(1..120) {
            now += random.u64(..SECOND / 20);
            let limit = NAMES[random.usize(..7)];
            let counter = random.u8(..2).to_string();
            let of = [of(limit, &counter)];
            let requests = random.u64(1..=2);
            match random.u8(..12) {
                0 | 1 => disk.write(&engine),
                2 => {
                    let at = now - random.u64(..2 * SECOND);
                    let counted = engine.increment(&of, requests, Some(at), now);
                    assert!(counted.is_ok(), "{counted:?}");
                }
                3 => {
                    let feedback = Feedback {
                        status: 200,
                        windows: vec![(random.u64(..9), Duration::from_secs(3))],
                    };
                    assert!(engine.apply_feedback(&of[0], &feedback, now).is_ok());
                }
                4 if limits_change => {
                    let rates = [["20/s", "5/s"], ["9/3s", "4/7s"], ["4/2s", "3/5s"]];
                    let [rate, other] = rates[random.usize(..3)];
                    text = LIMITS.replace(rate, other);
                    engine.change(&limits(&text), Vec::new(), now);
                }
                4 => engine.tidy(now),
                _ => {
                    let max_wait = Duration::from_millis(random.u64(..3_000));
                    let Ok(slot) = engine.reserve(None, &of, requests, max_wait, now) else {
                        continue;
                    };
                    let key = (limit.to_owned(), counter);
                    let whole = ("whole".to_owned(), String::new());
                    for key in [key, whole] {
                        grants.entry(key).or_default().push((slot.at, requests));
                    }
                }
            }
        }
        // Kill and restart.
        disk.write(&engine);
        let (other, _) = disk.start(OPTIONS, &text, now);
        // A full stepped bucket does not save the start of its steps.
        let exact = NAMES.iter().filter(|it| **it != "stepped");
        for (limit, counter) in exact.flat_map(|it| [(it, "0"), (it, "1")]) {
            let of = [of(limit, counter)];
            for requests in 1..=2 {
                let slots = [&engine, &other].map(|it| it.delay(&of, requests, true, now));
                assert_eq!(slots[0], slots[1], "seed {seed}: {limit}/{counter}");
            }
            let remaining = [&engine, &other].map(|it| it.remaining(&of, None, now));
            assert_eq!(remaining[0], remaining[1], "seed {seed}: {limit}/{counter}");
        }
        engine = other;
        now += random.u64(..SECOND);
    }
    if !limits_change {
        check(&mut grants, LIMITS, seed);
    }
}
