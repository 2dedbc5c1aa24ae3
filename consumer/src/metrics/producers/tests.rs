use std::collections::BTreeMap;

use super::*;

/// When chunks were accepted, in microseconds since the Unix epoch.
const ACCEPTED: u64 = 1_700_000_000_000_000;

fn producers() -> Producers {
    Producers::register(&Registry::new()).unwrap()
}

fn cursor(producer: &str, epoch: u64, sequence: u64) -> Cursor {
    Cursor {
        producer: producer.into(),
        epoch,
        sequence,
        complete: false,
    }
}

/// The values of a metric by producer.
fn shown(producers: &Producers, family: &Family) -> BTreeMap<String, f64> {
    let families = producers.collect();
    let found = families.iter().find(|it| it.name() == family.name);
    let metrics = found.unwrap().get_metric().iter().map(|metric| {
        let producer = metric.get_label()[0].value().to_owned();
        (producer, metric.get_gauge().get_value())
    });
    metrics.collect()
}

#[track_caller]
fn check(producers: &Producers, family: &Family, expected: &[(&str, f64)]) {
    let expected = expected
        .iter()
        .map(|&(producer, value)| (producer.to_owned(), value))
        .collect();
    assert_eq!(shown(producers, family), expected, "{}", family.name);
}

#[test]
fn lag_is_what_is_known_and_not_durable() {
    let producers = producers();
    let followed = producers.follow(&"p".into());
    followed.connected(&cursor("p", 1, 100), 501);
    check(&producers, &LAG, &[("p", 400.0)]);
    producers.durable(&cursor("p", 1, 300));
    check(&producers, &LAG, &[("p", 200.0)]);
    followed.reached(&cursor("p", 1, 600));
    check(&producers, &LAG, &[("p", 300.0)]);
    producers.durable(&cursor("p", 1, 600));
    check(&producers, &LAG, &[("p", 0.0)]);
}

#[test]
fn lag_in_a_new_life_does_not_count_from_the_cursor_of_the_old() {
    let producers = producers();
    producers.durable(&cursor("p", 1, 1_000));
    let followed = producers.follow(&"p".into());
    followed.connected(&cursor("p", 2, 0), 51);
    check(&producers, &LAG, &[("p", 50.0)]);
    producers.durable(&cursor("p", 2, 20));
    check(&producers, &LAG, &[("p", 30.0)]);
}

#[test]
fn producer_is_shown_while_somebody_reads_from_it_and_its_cursor_while_that_is_kept() {
    let producers = producers();
    let (one, other) = (producers.follow(&"p".into()), producers.follow(&"p".into()));
    one.connected(&cursor("p", 1, 0), 1);
    producers.durable(&cursor("p", 1, 7));
    check(&producers, &CONNECTED, &[("p", 1.0)]);
    one.disconnected();
    check(&producers, &CONNECTED, &[("p", 0.0)]);
    drop(one);
    check(&producers, &CONNECTED, &[("p", 0.0)]);
    drop(other);
    check(&producers, &CONNECTED, &[]);
    check(&producers, &LAG, &[]);
    check(&producers, &CURSOR, &[("p", 7.0)]);
    producers.forget("p");
    check(&producers, &CURSOR, &[]);
    assert!(producers.lock().is_empty());
}

#[test]
fn producers_are_bounded_and_those_that_are_read_stay() {
    let producers = producers();
    let read = producers.follow(&"read".into());
    read.connected(&cursor("read", 1, 0), 1);
    for number in 0..2 * PRODUCERS_MAX {
        producers.durable(&cursor(&format!("gone-{number}"), 1, 1));
    }
    assert_eq!(producers.lock().len(), PRODUCERS_MAX);
    check(&producers, &CONNECTED, &[("read", 1.0)]);

    let all: Vec<_> = (0..2 * PRODUCERS_MAX)
        .map(|number| producers.follow(&format!("here-{number}").into()))
        .collect();
    assert_eq!(shown(&producers, &CONNECTED).len(), PRODUCERS_MAX);
    drop(all);
    assert_eq!(shown(&producers, &CONNECTED).len(), 1);
}

#[track_caller]
fn check_skew(received: &[u64], expected: f64) {
    let producers = producers();
    let followed = producers.follow(&"p".into());
    let header = ChunkHeader {
        epoch: 1,
        first_sequence: 1,
        count: 1,
        accepted_unix_micros: ACCEPTED,
    };
    for micros in received {
        followed.received(&header, *micros, Instant::now());
    }
    check(&producers, &SKEW, &[("p", expected)]);
}

#[test]
fn skew_is_negative_when_the_clock_of_the_producer_is_ahead() {
    check_skew(&[ACCEPTED - 3_000_000], -3.0);
    check_skew(&[ACCEPTED + 20_000], 0.02);
}

#[test]
fn skew_is_the_least_of_what_was_seen_for_delay_only_adds_to_it() {
    check_skew(
        &[ACCEPTED + 900_000, ACCEPTED + 15_000, ACCEPTED + 40_000],
        0.015,
    );
    check_skew(&[0], -1.7e9);
}

#[test]
fn skew_forgets_what_is_two_intervals_old_and_is_unknown_without_cookies() {
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut skew = Skew::default();
    assert_eq!(skew.least(start), None);
    skew.note(-5, start);
    skew.note(7, after(61));
    assert_eq!(skew.least(after(119)), Some(-5));
    assert_eq!(skew.least(after(121)), Some(7));
    assert_eq!(skew.least(after(181)), None);
    skew.note(9, after(1_000));
    assert_eq!(skew.least(after(1_001)), Some(9));
}
