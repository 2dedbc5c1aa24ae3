//! Tests that the charts of docs/limits.md, which replays generate, are up to date. `UPDATE_DOCS=1` writes them.

use std::{env, fmt::Write as _, fs, path::Path, time::Duration};

use limiter::{
    chart::svg,
    replay::{Candidate, ReplayOptions, replay},
    trace::Trace,
};

/// Appends `count` calls, evenly between two times in seconds.
fn calls(text: &mut String, from: f64, to: f64, count: u32) {
    for number in 0..count {
        let at = from + (to - from) * f64::from(number) / f64::from(count);
        writeln!(text, "{at:.6},a").expect("formatting into a string does not fail");
    }
}

#[track_caller]
fn check(file: &str, name: &str, rule: &str, trace: &str, max_wait: u64) -> u64 {
    let trace = Trace::parse(trace).expect("a valid trace");
    let candidate = Candidate::per_key(name, rule).expect("a valid rule");
    let options = ReplayOptions {
        max_wait: Duration::from_secs(max_wait),
        window: Duration::from_secs(60),
    };
    let outcome = replay(&trace, &candidate, options);
    let chart = svg(&outcome).expect("cannot draw");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits");
    let path = dir.join(format!("{file}.svg"));
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::create_dir_all(&dir).expect("cannot create the directory");
        fs::write(&path, &chart).expect("cannot write the file");
    }
    assert!(
        fs::read_to_string(&path).is_ok_and(|saved| saved == chart),
        "docs/limits/{file}.svg is outdated: run UPDATE_DOCS=1 cargo test -p limiter --test it charts"
    );
    outcome.worst_window
}

#[test]
fn charts_of_a_burst_at_the_edge_of_a_window_are_current() {
    let mut trace = String::new();
    calls(&mut trace, 0.0, 50.0, 10);
    calls(&mut trace, 58.0, 62.0, 400);
    calls(&mut trace, 70.0, 130.0, 60);
    for (file, name, rule, worst) in [
        (
            "edge-fixed-window",
            "fixed window, 100/min",
            "rate = '100/min', algorithm = 'fixed_window'",
            199,
        ),
        (
            "edge-sliding-counter",
            "sliding counter, 100/min",
            "rate = '100/min', algorithm = 'sliding_counter'",
            141,
        ),
        (
            "edge-sliding-log",
            "sliding log, 100/min",
            "rate = '100/min', algorithm = 'sliding_log'",
            100,
        ),
        (
            "edge-token-bucket",
            "token bucket, 100/min, burst 20",
            "rate = '100/min', burst = 20",
            74,
        ),
    ] {
        let found = check(file, name, rule, &trace, 0);
        // docs/limits.md has these numbers.
        assert_eq!(found, worst, "{file}");
    }
}

#[test]
fn charts_of_a_warm_up_after_a_pause_are_current() {
    let mut trace = String::new();
    calls(&mut trace, 0.0, 30.0, 1_500);
    calls(&mut trace, 60.0, 80.0, 1_000);
    check(
        "pause-warm-up",
        "warm-up of 10 s, 20/s",
        "rate = '20/s', algorithm = 'warm_up', warm_up = '10s'",
        &trace,
        0,
    );
    check(
        "pause-token-bucket",
        "token bucket, 20/s, burst 100",
        "rate = '20/s', burst = 100",
        &trace,
        0,
    );
}

#[test]
fn charts_of_a_client_that_polls_every_millisecond_are_current() {
    let mut trace = String::new();
    calls(&mut trace, 0.0, 10.0, 10_000);
    check(
        "polled-spacing",
        "spacing, 300/s, no wait",
        "rate = '300/s', algorithm = 'spacing'",
        &trace,
        0,
    );
    check(
        "polled-shaped",
        "spacing, 300/s, waiting up to 5 s",
        "rate = '300/s', algorithm = 'spacing'",
        &trace,
        5,
    );
    check(
        "polled-token-bucket",
        "token bucket, 300/s, burst 3",
        "rate = '300/s', burst = 3",
        &trace,
        0,
    );
}
