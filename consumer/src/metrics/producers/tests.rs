//! Tests of the series of producers that connect and disappear.

use std::{collections::BTreeMap, net::SocketAddr};

use proto::units::{Epoch, Sequence};

use super::*;
use crate::{
    batch::Cursor,
    producers::{AddressGuard, StreamGuard, StreamStart},
};

fn cursor(producer: &str, sequence: u64) -> Cursor {
    Cursor {
        producer: producer.into(),
        epoch: Epoch(1),
        sequence: Sequence(sequence),
        complete: false,
    }
}

/// Opens a stream of a producer at this port.
fn open(producers: &Producers, producer: &str, port: u16) -> (AddressGuard, StreamGuard) {
    let address = producers.register(SocketAddr::from(([127, 0, 0, 1], port)), "http://here");
    let start = StreamStart {
        at: &cursor(producer, 0),
        newest: Sequence(0),
        previous: None,
    };
    let (stream, _) = address.open_stream(start);
    (address, stream)
}

/// The values of a metric by label.
fn values(producers: &Producers, metric: MetricDef) -> BTreeMap<String, f64> {
    let families = families(&producers.snapshot());
    let found = families.iter().find(|it| it.name() == metric.name);
    let metrics = found.unwrap().get_metric().iter().map(|metric| {
        let label = metric.get_label().first();
        let label = label.map_or_else(String::new, |label| label.value().to_owned());
        (label, metric.get_gauge().get_value())
    });
    metrics.collect()
}

#[track_caller]
fn check(producers: &Producers, metric: MetricDef, expected: &[(&str, f64)]) {
    let expected = expected
        .iter()
        .map(|&(label, value)| (label.to_owned(), value))
        .collect();
    assert_eq!(values(producers, metric), expected, "{}", metric.name);
}

#[test]
fn producer_has_series_while_an_address_reads_it_and_a_cursor_series_while_stored() {
    let producers = Producers::default();
    let (one, other) = (open(&producers, "p", 1), open(&producers, "p", 2));
    producers.record_commit(&[cursor("p", 7)]);
    check(&producers, consumer::PRODUCER_CONNECTED, &[("p", 1.0)]);
    check(&producers, consumer::PRODUCERS_CONNECTED, &[("", 2.0)]);
    drop((one.1, other.1));
    let both = [("127.0.0.1:1", 0.0), ("127.0.0.1:2", 0.0)];
    check(&producers, consumer::ADDRESS_CONNECTED, &both);
    check(&producers, consumer::PRODUCERS_CONNECTED, &[("", 0.0)]);
    drop(one.0);
    check(&producers, consumer::PRODUCER_CONNECTED, &[("p", 0.0)]);
    check(&producers, consumer::ADDRESS_CONNECTED, &both[1..]);
    drop(other.0);
    check(&producers, consumer::PRODUCER_CONNECTED, &[]);
    check(&producers, consumer::PRODUCER_LAG, &[]);
    check(&producers, consumer::CURSOR, &[("p", 7.0)]);
    producers.forget("p");
    check(&producers, consumer::CURSOR, &[]);
}

#[test]
fn number_of_series_is_bounded_and_connected_producers_stay() {
    let producers = Producers::default();
    let _read = open(&producers, "read", 1);
    for number in 0..2 * PRODUCER_SERIES_MAX {
        producers.record_commit(&[cursor(&format!("gone-{number}"), 1)]);
    }
    assert_eq!(
        values(&producers, consumer::CURSOR).len(),
        PRODUCER_SERIES_MAX - 1
    );
    check(&producers, consumer::PRODUCER_CONNECTED, &[("read", 1.0)]);

    let ports = 2..=513;
    let all: Vec<_> = ports
        .map(|port| open(&producers, &format!("here-{port}"), port))
        .collect();
    assert_eq!(all.len(), 2 * PRODUCER_SERIES_MAX);
    assert_eq!(
        values(&producers, consumer::PRODUCER_CONNECTED).len(),
        PRODUCER_SERIES_MAX
    );
    drop(all);
    assert_eq!(values(&producers, consumer::PRODUCER_CONNECTED).len(), 1);
}

#[test]
fn skew_is_the_maximum_difference_and_negative_when_the_producers_clock_is_ahead() {
    let producers = Producers::default();
    let (_address, _stream) = open(&producers, "p", 1);
    check(&producers, consumer::CLOCK_SKEW, &[]);
    let skew = || values(&producers, consumer::CLOCK_SKEW)["p"];
    let now = producers.steady_now();
    producers.measure_clock("p", now, now);
    assert!((0.0..60.0).contains(&skew()), "{}", skew());
    // The chunk shows that the clock was set ahead.
    producers.limit_clock("p", now.after(90_000_000));
    assert!((-90.0..-30.0).contains(&skew()), "{}", skew());
}
