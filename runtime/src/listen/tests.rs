//! The watcher against connections that behave in every way, on a set clock.

use std::sync::atomic::Ordering;

use super::{activity::Watcher, *};

const LIMITS: Limits = Limits {
    connections_max: 1,
    connections_per_address_max: None,
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(60),
    write_timeout: Some(Duration::from_secs(20)),
};

/// Applies `act` before each look, one look every five seconds; returns when and why it is cut.
#[track_caller]
fn check(act: impl Fn(u64, &Activity), expected: Option<(u64, Cut)>) {
    let activity = Activity::default();
    let start = Instant::now();
    let mut watcher = Watcher::new(start);
    let cut = (5..=600).step_by(5).find_map(|second| {
        act(second, &activity);
        let now = start + Duration::from_secs(second);
        watcher
            .look(&activity, now, &LIMITS)
            .map(|cut| (second, cut))
    });
    assert_eq!(cut, expected);
}

#[test]
fn byte_by_byte_request_is_cut_at_the_request_timeout() {
    check(
        |second, activity| activity.bytes_read.store(second, Ordering::Relaxed),
        Some((10, Cut::SlowRequest)),
    );
}

#[test]
fn connection_that_may_say_more_than_requests_is_only_ever_idle() {
    let limits = Limits {
        request_timeout: None,
        ..LIMITS
    };
    let activity = Activity::default();
    let start = Instant::now();
    let mut watcher = Watcher::new(start);
    activity.bytes_read.store(100, Ordering::Relaxed);
    let minute = start + Duration::from_secs(59);
    assert_eq!(watcher.look(&activity, minute, &limits), None);
    let later = start + Duration::from_secs(60);
    assert_eq!(watcher.look(&activity, later, &limits), Some(Cut::Idle));
}

#[test]
fn request_that_begins_after_a_long_rest_has_its_full_time() {
    let one_byte_after_40_seconds = |second, activity: &Activity| {
        activity
            .bytes_read
            .store(u64::from(second > 40), Ordering::Relaxed);
    };
    check(one_byte_after_40_seconds, Some((50, Cut::SlowRequest)));
}

#[test]
fn silent_connection_is_cut_at_the_idle_timeout() {
    check(|_, _| {}, Some((60, Cut::Idle)));
}

#[test]
fn idle_connections_have_little_time_where_places_run_short() {
    let many = Limits {
        connections_max: 100,
        ..LIMITS
    };
    let idle = |open| with_open(many, open).idle_timeout;
    assert_eq!(idle(80), LIMITS.idle_timeout);
    assert_eq!(idle(81), LIMITS.idle_timeout / SHORT_IDLE_PART);
    let brief = Limits {
        idle_timeout: Duration::from_millis(300),
        ..many
    };
    assert_eq!(with_open(brief, 100), brief);
}

#[test]
fn connection_with_requests_or_a_long_one_lives() {
    check(|_, activity| activity.request(), None);
    let long = Arc::new(Activity::default());
    let guard = long.long_request();
    let start = Instant::now();
    let mut watcher = Watcher::new(start);
    let hour = start + Duration::from_secs(3600);
    assert_eq!(watcher.look(&long, hour, &LIMITS), None);
    drop(guard);
    let later = hour + Duration::from_secs(60);
    assert_eq!(watcher.look(&long, later, &LIMITS), Some(Cut::Idle));
}

#[test]
fn client_that_never_reads_is_cut_though_it_keeps_asking() {
    check(
        |_, activity| {
            activity.request();
            activity.write_blocked.store(true, Ordering::Relaxed);
        },
        Some((25, Cut::SlowReader)),
    );
}

#[test]
fn slow_but_steady_reader_lives() {
    check(
        |second, activity| {
            activity.request();
            activity.write_blocked.store(true, Ordering::Relaxed);
            activity.bytes_written.store(second, Ordering::Relaxed);
        },
        None,
    );
}
