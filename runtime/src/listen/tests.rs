//! Tests of the timeouts with every kind of connection behavior, on a simulated clock.

use std::sync::atomic::Ordering;

use super::{activity::Watcher, *};

const LIMITS: Limits = Limits {
    connections_max: 1,
    connections_per_address_max: None,
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(60),
    write_timeout: Some(Duration::from_secs(20)),
};

/// Checks a connection every five simulated seconds, after calling `act`. Compares the second and the reason of its end.
#[track_caller]
fn check(act: impl Fn(u64, &Activity), expected: Option<(u64, CloseReason)>) {
    let activity = Activity::default();
    let start = Instant::now();
    let mut watcher = Watcher::new(start);
    let closed = (5..=600).step_by(5).find_map(|second| {
        act(second, &activity);
        let now = start + Duration::from_secs(second);
        watcher
            .check(&activity, now, &LIMITS)
            .map(|reason| (second, reason))
    });
    assert_eq!(closed, expected);
}

#[test]
fn slow_request_is_closed_at_the_request_timeout() {
    check(
        |second, activity| activity.bytes_read.store(second, Ordering::Relaxed),
        Some((10, CloseReason::SlowRequest)),
    );
}

#[test]
fn connection_without_a_request_timeout_is_closed_only_when_idle() {
    let limits = Limits {
        request_timeout: None,
        ..LIMITS
    };
    let activity = Activity::default();
    let start = Instant::now();
    let mut watcher = Watcher::new(start);
    activity.bytes_read.store(100, Ordering::Relaxed);
    let minute = start + Duration::from_secs(59);
    assert_eq!(watcher.check(&activity, minute, &limits), None);
    let later = start + Duration::from_secs(60);
    assert_eq!(
        watcher.check(&activity, later, &limits),
        Some(CloseReason::Idle)
    );
}

#[test]
fn request_after_an_idle_period_has_the_full_request_timeout() {
    let one_byte_after_40_seconds = |second, activity: &Activity| {
        activity
            .bytes_read
            .store(u64::from(second > 40), Ordering::Relaxed);
    };
    check(
        one_byte_after_40_seconds,
        Some((50, CloseReason::SlowRequest)),
    );
}

#[test]
fn silent_connection_is_closed_at_the_idle_timeout() {
    check(|_, _| {}, Some((60, CloseReason::Idle)));
}

#[test]
fn idle_timeout_is_shortened_on_a_nearly_full_port() {
    let many = Limits {
        connections_max: 100,
        ..LIMITS
    };
    let idle = |open| with_open(many, open).idle_timeout;
    assert_eq!(idle(80), LIMITS.idle_timeout);
    assert_eq!(idle(81), LIMITS.idle_timeout / SHORT_IDLE_DIVISOR);
    let brief = Limits {
        idle_timeout: Duration::from_millis(300),
        ..many
    };
    assert_eq!(with_open(brief, 100), brief);
}

#[test]
fn connection_with_requests_or_a_long_request_stays_open() {
    check(|_, activity| activity.request(), None);
    let long = Arc::new(Activity::default());
    let guard = long.long_request();
    let start = Instant::now();
    let mut watcher = Watcher::new(start);
    let hour = start + Duration::from_secs(3600);
    assert_eq!(watcher.check(&long, hour, &LIMITS), None);
    drop(guard);
    let later = hour + Duration::from_secs(60);
    assert_eq!(
        watcher.check(&long, later, &LIMITS),
        Some(CloseReason::Idle)
    );
}

#[test]
fn client_that_never_reads_is_closed_despite_new_requests() {
    check(
        |_, activity| {
            activity.request();
            activity.write_blocked.store(true, Ordering::Relaxed);
        },
        Some((25, CloseReason::SlowReader)),
    );
}

#[test]
fn slow_steady_reader_stays_open() {
    check(
        |second, activity| {
            activity.request();
            activity.write_blocked.store(true, Ordering::Relaxed);
            activity.bytes_written.store(second, Ordering::Relaxed);
        },
        None,
    );
}
