//! Tests of default steps, descriptions and parameter checks.

use super::*;

#[test]
fn default_step_depends_on_the_window() {
    for (seconds, step_millis) in [
        (1, 10),
        (10, 10),
        (11, 100),
        (60, 100),
        (61, 1_000),
        (3_600, 1_000),
        (3_601, 60_000),
        (86_400, 60_000),
        (86_401, 3_600_000),
    ] {
        let step = default_step(Duration::from_secs(seconds));
        assert_eq!(step, Duration::from_millis(step_millis), "{seconds} s");
    }
    let just_above = Duration::from_secs(10) + Duration::from_nanos(1);
    assert_eq!(default_step(just_above), Duration::from_millis(100));
}

#[test]
fn description_states_the_limit() {
    let bucket = Algorithm::token_bucket("300/s", 300).unwrap();
    assert_eq!(bucket.to_string(), "300/s, up to 300 at once");
    let log = Algorithm::SlidingLog {
        limit: 1_000,
        window: Duration::from_secs(60),
    };
    assert_eq!(log.to_string(), "1000 in 1m");
}

#[test]
fn guaranteed_share_divides_rates_and_windows() {
    let third = |algorithm: Algorithm| algorithm.guaranteed_share(3);
    let bucket = |rate, burst| Algorithm::token_bucket(rate, burst).unwrap();
    assert_eq!(third(bucket("300/s", 10)), Ok(bucket("100/s", 4)));
    assert_eq!(third(bucket("100/s", 1)), Ok(bucket("100/3s", 1)));
    let hour = |limit| Algorithm::SlidingCounter {
        limit,
        window: Duration::from_secs(3_600),
    };
    assert_eq!(third(hour(1_000)), Ok(hour(333)));
    assert!(third(hour(2)).is_err());
}

#[test]
fn parameters_out_of_range_are_rejected() {
    assert!(Algorithm::token_bucket("1/s", 0).is_err());
    let window = Duration::from_secs(1);
    for invalid in [
        Algorithm::SlidingLog {
            limit: LOG_MAX + 1,
            window,
        },
        Algorithm::StepWindow {
            limit: 1,
            window,
            step: Duration::ZERO,
        },
        Algorithm::StepWindow {
            limit: 1,
            window,
            step: window * 2,
        },
        Algorithm::StepWindow {
            limit: 1,
            window,
            step: Duration::from_nanos(1),
        },
        Algorithm::FixedWindow {
            limit: 0,
            window,
            aligned: Alignment::Clock,
        },
        Algorithm::SlidingCounter {
            limit: 1,
            window: Duration::ZERO,
        },
    ] {
        assert!(invalid.checked().is_err(), "{invalid:?}");
    }
}
