//! Tests of subscribers that join, leave, supersede each other and are evicted.

use super::*;
use crate::log::{Delivery, GapReason};

const HOUR: Duration = Duration::from_secs(3600);

fn join(subscribers: &Subscribers, name: &str, first: u64) -> Result<Lease, CallError> {
    join_from(subscribers, HERE, name, first)
}

fn join_from(
    subscribers: &Subscribers,
    network: IpAddr,
    name: &str,
    first: u64,
) -> Result<Lease, CallError> {
    subscribers.join(Call::Subscribe, name, network, |_| {
        StreamStart::fresh(Sequence(first))
    })
}

fn gap(first: u64, last: u64) -> Delivery {
    Delivery::Gap {
        first: Sequence(first),
        last: Sequence(last),
        reason: GapReason::Evicted,
    }
}

fn only(subscribers: &Subscribers) -> Snapshot {
    let mut all = subscribers.snapshot();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn gap_that_is_passed_twice_counts_once() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 5).unwrap();
    lease.record(&gap(5, 14), 0, 0);
    drop(lease);
    let lease = join(&subscribers, "a", 10).unwrap();
    lease.record(&gap(10, 19), 0, 0);
    lease.record(&gap(20, 20), 0, 0);
    let snapshot = only(&subscribers);
    let totals = snapshot.totals;
    assert_eq!((totals.lost_evicted, snapshot.position.0), (16, 21));
    assert_eq!(totals.streams, 2);
}

#[test]
fn superseded_stream_no_longer_changes_the_subscriber() {
    let subscribers = Subscribers::new(HOUR, 10);
    let older = join(&subscribers, "a", 1).unwrap();
    let newer = join(&subscribers, "a", 1).unwrap();
    assert!(older.superseded.is_cancelled());
    older.record(&gap(1, 5), 7, 0);
    assert_eq!(only(&subscribers).position, Sequence(1));
    assert_eq!(
        only(&subscribers).totals.bytes,
        7,
        "its last delivery is sent"
    );
    drop(older);
    assert!(only(&subscribers).connected);
    drop(newer);
    assert!(!only(&subscribers).connected);
}

#[test]
fn rejected_stream_does_not_supersede_the_current_one() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 1).unwrap();
    let refused = subscribers.join(Call::Subscribe, "a", HERE, |_| Err(CallError::OtherLog));
    assert_eq!(refused.unwrap_err(), CallError::OtherLog);
    assert!(!lease.superseded.is_cancelled());
}

#[test]
fn subscribers_with_the_same_name_are_separate_per_call() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 1).unwrap();
    let other = subscribers.join(Call::GetCookies, "a", HERE, |retained| {
        assert_eq!(retained, None);
        StreamStart::fresh(Sequence(1))
    });
    assert!(other.is_ok());
    assert!(!lease.superseded.is_cancelled());
}

#[test]
fn disconnected_subscriber_is_retained_and_then_removed() {
    let subscribers = Subscribers::new(HOUR, 10);
    drop(join(&subscribers, "a", 7).unwrap());
    subscribers.sweep();
    let mut found = None;
    let lease = subscribers.join(Call::Subscribe, "a", HERE, |retained| {
        found = retained;
        StreamStart::fresh(Sequence(7))
    });
    assert_eq!(found.map(|retained| retained.position), Some(Sequence(7)));
    drop(lease);

    let without_retention = Subscribers::new(Duration::ZERO, 10);
    drop(join(&without_retention, "a", 7).unwrap());
    without_retention.sweep();
    assert!(without_retention.snapshot().is_empty());
}

#[test]
fn new_subscriber_evicts_the_longest_disconnected_one() {
    let subscribers = Subscribers::new(HOUR, 2);
    drop(join(&subscribers, "disconnected", 1).unwrap());
    let _connected = join(&subscribers, "connected", 1).unwrap();
    let _new = join(&subscribers, "new", 1).unwrap();
    let names: Vec<_> = subscribers.snapshot().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["connected", "new"]);
    assert!(join(&subscribers, "more", 1).is_err());
}

#[test]
fn maximum_lag_is_reported_by_the_next_two_scrapes() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 1).unwrap();
    lease.record(&gap(1, 90), 0, 100);
    lease.record(&gap(91, 100), 0, 10);
    let scrape = || {
        let lag_max = only(&subscribers).lag_max;
        subscribers.end_interval(Sequence(101));
        lag_max
    };
    assert_eq!(
        only(&subscribers).lag_max,
        100,
        "a snapshot is not a scrape"
    );
    assert_eq!((scrape(), scrape(), scrape()), (100, 100, 0));
}

#[test]
fn maximum_lag_includes_subscribers_that_read_nothing() {
    let subscribers = Subscribers::new(HOUR, 10);
    drop(join(&subscribers, "a", 1).unwrap());
    subscribers.end_interval(Sequence(51));
    assert_eq!(only(&subscribers).lag_max, 50);
}

#[test]
fn streams_are_counted_by_resume_outcome() {
    let subscribers = Subscribers::new(HOUR, 10);
    for outcome in [
        ResumeOutcome::Fresh,
        ResumeOutcome::Resumed,
        ResumeOutcome::NewEpoch,
        ResumeOutcome::Resumed,
    ] {
        let joined = subscribers.join(Call::Subscribe, "a", HERE, |_| {
            StreamStart::fresh(Sequence(1)).map(|fresh| StreamStart { outcome, ..fresh })
        });
        assert!(joined.is_ok());
    }
    let snapshot = only(&subscribers);
    assert_eq!(snapshot.resumes, [1, 2, 0, 1]);
    assert_eq!(snapshot.totals.streams, 4);
}

#[test]
fn number_of_names_with_series_is_bounded() {
    let subscribers = Subscribers::new(Duration::ZERO, 10);
    let has_series = |name: usize| {
        let lease = join(&subscribers, &name.to_string(), 1).unwrap();
        let has_series = only(&subscribers).has_series;
        drop(lease);
        has_series
    };
    let with_series = (0..2 * SERIES_MAX).filter(|&name| has_series(name));
    assert_eq!(with_series.count(), SERIES_MAX);
}

#[test]
fn only_the_network_of_the_current_stream_may_confirm() {
    let subscribers = Subscribers::new(HOUR, 10);
    let other = IpAddr::from([10, 0, 2, 9]);
    let confirms = |network| {
        subscribers
            .confirm("a", network, Sequence(1), Sequence(1))
            .is_ok()
    };
    assert!(!confirms(HERE));
    let _before = join(&subscribers, "a", 1).unwrap();
    assert_eq!([HERE, other].map(confirms), [true, false]);
    let lease = join_from(&subscribers, other, "a", 1).unwrap();
    assert_eq!([HERE, other].map(confirms), [false, true]);
    drop(lease);
    assert!(!confirms(other));
}
