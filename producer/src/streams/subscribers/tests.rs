//! Queues that are joined, left, taken over and forgotten.

use super::{retention::PER_ADDRESS_MIN, *};
use crate::log::{Delivery, GapReason};

const HOUR: Duration = Duration::from_secs(3600);

fn join(
    subscribers: &Subscribers,
    name: &str,
    first: Sequence,
) -> Result<Lease, TooManySubscribers> {
    subscribers.join(Call::Subscribe, name, HERE, |_| Start::fresh(first))
}

fn gap(first: Sequence, last: Sequence) -> Delivery {
    Delivery::Gap {
        first,
        last,
        reason: GapReason::Evicted,
    }
}

fn only(subscribers: &Subscribers) -> Snapshot {
    let mut all = subscribers.snapshot();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn what_is_passed_again_counts_once() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 5).unwrap();
    lease.record(&gap(5, 14), 0, 0);
    drop(lease);
    let lease = join(&subscribers, "a", 10).unwrap();
    lease.record(&gap(10, 19), 0, 0);
    lease.record(&gap(20, 20), 0, 0);
    let snapshot = only(&subscribers);
    let totals = snapshot.totals;
    assert_eq!((totals.lost_evicted, snapshot.position), (16, 21));
    assert_eq!(totals.streams, 2);
}

#[test]
fn newest_stream_has_the_queue_and_the_older_one_cannot_touch_it() {
    let subscribers = Subscribers::new(HOUR, 10);
    let older = join(&subscribers, "a", 1).unwrap();
    let newer = join(&subscribers, "a", 1).unwrap();
    assert!(older.superseded.is_cancelled());
    older.record(&gap(1, 5), 7, 0);
    assert_eq!(only(&subscribers).position, 1);
    assert_eq!(only(&subscribers).totals.bytes, 7, "it is still sent");
    drop(older);
    assert!(only(&subscribers).connected);
    drop(newer);
    assert!(!only(&subscribers).connected);
}

#[test]
fn refused_stream_leaves_the_one_that_runs() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 1).unwrap();
    let refused = subscribers.join(Call::Subscribe, "a", HERE, |_| Err(TooManySubscribers));
    assert_eq!(refused.err(), Some(TooManySubscribers));
    assert!(!lease.superseded.is_cancelled());
}

#[test]
fn same_name_is_another_queue_for_the_other_call() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 1).unwrap();
    let other = subscribers.join(Call::GetCookies, "a", HERE, |remembered| {
        assert_eq!(remembered, None);
        Start::fresh::<TooManySubscribers>(1)
    });
    assert!(other.is_ok());
    assert!(!lease.superseded.is_cancelled());
}

#[test]
fn departed_subscriber_is_remembered_and_then_forgotten() {
    let subscribers = Subscribers::new(HOUR, 10);
    drop(join(&subscribers, "a", 7).unwrap());
    subscribers.sweep();
    let mut found = None;
    let lease = subscribers.join(Call::Subscribe, "a", HERE, |remembered| {
        found = remembered;
        Start::fresh::<TooManySubscribers>(7)
    });
    assert_eq!(found.map(|queue| queue.position), Some(7));
    drop(lease);

    let forgetful = Subscribers::new(Duration::ZERO, 10);
    drop(join(&forgetful, "a", 7).unwrap());
    forgetful.sweep();
    assert!(forgetful.snapshot().is_empty());
}

#[test]
fn full_house_makes_room_by_forgetting_the_longest_gone() {
    let subscribers = Subscribers::new(HOUR, 2);
    drop(join(&subscribers, "gone", 1).unwrap());
    let _here = join(&subscribers, "here", 1).unwrap();
    let _new = join(&subscribers, "new", 1).unwrap();
    let names: Vec<_> = subscribers.snapshot().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["here", "new"]);
    assert!(join(&subscribers, "more", 1).is_err());
}

#[test]
fn one_address_neither_keeps_others_out_nor_has_them_forgotten() {
    let most = PER_ADDRESS_MIN + 2;
    let subscribers = Subscribers::new(HOUR, most);
    let join_from = |network: [u8; 4], name: &str| {
        let network = IpAddr::from(network);
        subscribers.join(Call::Subscribe, name, network, |_| {
            Start::fresh::<TooManySubscribers>(1)
        })
    };
    drop(join_from([10, 0, 0, 1], "away").unwrap());
    let mut greedy: Vec<_> = (0..PER_ADDRESS_MIN)
        .map(|number| join_from([10, 0, 0, 66], &number.to_string()).unwrap())
        .collect();
    assert!(join_from([10, 0, 0, 66], "more").is_err());
    let _other = join_from([10, 0, 0, 2], "other").unwrap();
    // Only its own queues whose streams have ended make room.
    drop(greedy.pop());
    greedy.push(join_from([10, 0, 0, 66], "more").unwrap());
    let names: Vec<_> = subscribers.snapshot().into_iter().map(|s| s.name).collect();
    assert_eq!(names.len(), most);
    assert!(names.contains(&"away".to_owned()) && names.contains(&"more".to_owned()));
    // A name that exists already needs no other queue.
    assert!(join_from([10, 0, 0, 66], "away").is_ok());
}

#[test]
fn greatest_lag_is_seen_by_a_scrape_after_it_is_gone() {
    let subscribers = Subscribers::new(HOUR, 10);
    let lease = join(&subscribers, "a", 1).unwrap();
    lease.record(&gap(1, 90), 0, 100);
    lease.record(&gap(91, 100), 0, 10);
    let scrape = || {
        let lag_max = only(&subscribers).lag_max;
        subscribers.end_interval(101);
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
fn lag_of_a_subscriber_that_takes_nothing_is_seen_too() {
    let subscribers = Subscribers::new(HOUR, 10);
    drop(join(&subscribers, "a", 1).unwrap());
    subscribers.end_interval(51);
    assert_eq!(only(&subscribers).lag_max, 50);
}

#[test]
fn streams_are_counted_by_how_they_began() {
    let subscribers = Subscribers::new(HOUR, 10);
    for outcome in [
        ResumeOutcome::Fresh,
        ResumeOutcome::Resumed,
        ResumeOutcome::NewEpoch,
        ResumeOutcome::Resumed,
    ] {
        let joined = subscribers.join(Call::Subscribe, "a", HERE, |_| {
            Start::fresh::<TooManySubscribers>(1).map(|fresh| Start { outcome, ..fresh })
        });
        assert!(joined.is_ok());
    }
    let snapshot = only(&subscribers);
    assert_eq!(snapshot.resumes, [1, 2, 0, 1]);
    assert_eq!(snapshot.totals.streams, 4);
}

#[test]
fn ever_new_names_get_no_more_series_than_there_are() {
    let subscribers = Subscribers::new(Duration::ZERO, 10);
    let is_shown = |name: usize| {
        let lease = join(&subscribers, &name.to_string(), 1).unwrap();
        let is_shown = only(&subscribers).is_shown;
        drop(lease);
        is_shown
    };
    let shown = (0..2 * NAMES_SHOWN).filter(|&name| is_shown(name));
    assert_eq!(shown.count(), NAMES_SHOWN);
}
