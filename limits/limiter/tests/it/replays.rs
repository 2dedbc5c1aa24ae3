//! Replays of traffic, from which docs/limits.md has its numbers.

use std::{fmt::Write as _, time::Duration};

use limiter::{
    replay::{Outcome, per_key, replay},
    trace::Trace,
};

/// Appends `count` calls, evenly between two times in seconds.
fn calls(text: &mut String, from: f64, to: f64, count: u32) {
    for number in 0..count {
        let at = from + (to - from) * f64::from(number) / f64::from(count);
        writeln!(text, "{at:.6},a").expect("formatting into a string does not fail");
    }
}

fn outcome(rule: &str, trace: &str, max_wait: u64) -> Outcome {
    let trace = Trace::parse(trace).expect("a valid trace");
    let rules = per_key(rule).expect("a valid rule");
    let [max_wait, window] = [max_wait, 60].map(Duration::from_secs);
    replay(&trace, &rules, max_wait, window)
}

#[test]
fn burst_at_the_edge_of_a_window() {
    let mut trace = String::new();
    calls(&mut trace, 0.0, 50.0, 10);
    calls(&mut trace, 58.0, 62.0, 400);
    calls(&mut trace, 70.0, 130.0, 60);
    for (rule, worst) in [
        ("rate = '100/min', algorithm = 'fixed_window'", 199),
        ("rate = '100/min', algorithm = 'sliding_counter'", 141),
        ("rate = '100/min', algorithm = 'sliding_log'", 100),
        ("rate = '100/min', burst = 20", 74),
    ] {
        assert_eq!(outcome(rule, &trace, 0).worst_window, worst, "{rule}");
    }
}

#[test]
fn client_that_polls_every_millisecond() {
    let mut trace = String::new();
    calls(&mut trace, 0.0, 10.0, 10_000);
    for (rule, max_wait, released) in [
        ("rate = '300/s', algorithm = 'spacing'", 0, 2_500),
        ("rate = '300/s', algorithm = 'spacing'", 5, 4_500),
        ("rate = '300/s', burst = 3", 0, 3_002),
    ] {
        let found = outcome(rule, &trace, max_wait).released;
        assert_eq!(found, released, "{rule}");
    }
}
