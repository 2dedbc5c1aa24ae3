//! Metrics of the subscribers.

use std::time::Duration;

use metric_defs::{MetricDef, producer};
use runtime::metrics::{Family, as_f64, family, value};

use crate::{
    log::Stats,
    streams::subscribers::{RESUMES, Snapshot},
};

/// A subscriber, the age of its oldest unread cookie, and the log.
struct Sample<'a> {
    subscriber: &'a Snapshot,
    age: Duration,
    stats: &'a Stats,
}

/// A metric with one series per subscriber, and its value.
type Row = (MetricDef, fn(&Sample<'_>) -> u64);

const ROWS: &[Row] = &[
    (producer::SUBSCRIBER_CONNECTED, |it| {
        it.subscriber.connected.into()
    }),
    (producer::LAG, |it| it.lag()),
    (producer::LAG_MAX, |it| it.subscriber.lag_max.max(it.lag())),
    (producer::SUBSCRIBER_APPENDED, |it| {
        it.stats.appended + 1 - it.subscriber.joined.0
    }),
    (producer::DELIVERED, |it| it.subscriber.totals.delivered),
    (producer::REDELIVERED, |it| it.subscriber.totals.redelivered),
    (producer::UNDELIVERED, |it| it.subscriber.totals.undelivered),
    (producer::RECOVERED, |it| it.subscriber.totals.recovered),
    (producer::QUEUED, |it| {
        it.stats.appended + 1 - it.subscriber.high_water.0
    }),
    (producer::SENT_BYTES, |it| it.subscriber.totals.bytes),
    (producer::STREAMS, |it| it.subscriber.totals.streams),
    (producer::SUBSCRIBER_IN_FLIGHT_BYTES, |it| {
        it.subscriber.in_flight_bytes
    }),
    (producer::SUBSCRIBER_DISCONNECTS, |it| {
        it.subscriber.disconnects
    }),
];

impl Sample<'_> {
    fn lag(&self) -> u64 {
        self.stats.span.next.since(self.subscriber.position)
    }
}

/// Current values of all metrics; `ages` correspond to `subscribers`.
pub(super) fn read(subscribers: &[Snapshot], ages: &[Duration], stats: &Stats) -> Vec<Family> {
    let each = || {
        let pairs = subscribers.iter().zip(ages);
        let pairs = pairs.filter(|(subscriber, _)| subscriber.has_series);
        pairs.map(|(subscriber, &age)| Sample {
            subscriber,
            age,
            stats,
        })
    };
    let metrics = ROWS.iter().map(|(metric, count)| {
        let samples = each().map(|it| (labels(it.subscriber), as_f64(count(&it))));
        family(*metric, samples)
    });
    let ages = each().map(|it| (labels(it.subscriber), it.age.as_secs_f64()));
    let confirmed = |at: usize| {
        each().filter_map(move |it| {
            let positions = it.subscriber.confirmed?;
            Some((labels(it.subscriber), as_f64(positions[at].0)))
        })
    };
    let lost = each().flat_map(|Sample { subscriber, .. }| {
        let [name, call] = labels(subscriber);
        [
            ("lag_limit", subscriber.totals.lost_lag_limit),
            ("evicted", subscriber.totals.lost_evicted),
        ]
        .map(|(reason, count)| ([name, call, reason], as_f64(count)))
    });
    let resumed = each().flat_map(|Sample { subscriber, .. }| {
        let [name, call] = labels(subscriber);
        let by_outcome = RESUMES.into_iter().zip(subscriber.resumes);
        by_outcome.map(move |((_, label), count)| ([name, call, label], as_f64(count)))
    });
    let without_series = as_f64((subscribers.len() - each().count()) as u64);
    let is_without_age = |subscriber: &&Snapshot| subscriber.connected && !subscriber.supports_age;
    let without_age = as_f64(subscribers.iter().filter(is_without_age).count() as u64);
    metrics
        .chain([
            family(producer::LAG_SECONDS, ages),
            family(producer::DURABLE, confirmed(0)),
            family(producer::APPLIED, confirmed(1)),
            family(producer::SUBSCRIBER_LOST, lost),
            family(producer::RESUMES, resumed),
            value(producer::SUBSCRIBERS_WITHOUT_SERIES, without_series),
            value(producer::STREAMS_WITHOUT_AGE_SUPPORT, without_age),
        ])
        .collect()
}

fn labels(subscriber: &Snapshot) -> [&str; 2] {
    [&subscriber.name, subscriber.call.label()]
}
