//! How each subscriber stands, and what it got.

use std::time::Duration;

use metric_defs::{MetricDef, producer};
use prometheus::proto::MetricFamily;
use runtime::metrics::family;

use super::as_f64;
use crate::{
    log::Stats,
    streams::subscribers::{RESUMES, Snapshot, resume_label},
};

/// A subscriber, the age of the oldest cookie before it, and the log.
struct Read<'a> {
    queue: &'a Snapshot,
    age: Duration,
    stats: &'a Stats,
}

/// A metric with one series for each subscriber, and how it is read.
type Row = (MetricDef, fn(&Read<'_>) -> u64);

const ROWS: &[Row] = &[
    (producer::SUBSCRIBER_CONNECTED, |it| {
        it.queue.connected.into()
    }),
    (producer::LAG, |it| it.lag()),
    (producer::LAG_MAX, |it| it.queue.lag_max.max(it.lag())),
    (producer::SUBSCRIBER_APPENDED, |it| {
        it.queue.appended(it.stats.appended)
    }),
    (producer::DELIVERED, |it| it.queue.totals.delivered),
    (producer::REDELIVERED, |it| it.queue.totals.redelivered),
    (producer::UNDELIVERED, |it| it.queue.totals.undelivered),
    (producer::RECOVERED, |it| it.queue.totals.recovered),
    (producer::QUEUED, |it| it.queue.queued(it.stats.appended)),
    (producer::SENT_BYTES, |it| it.queue.totals.bytes),
    (producer::STREAMS, |it| it.queue.totals.streams),
    (producer::SUBSCRIBER_IN_FLIGHT_BYTES, |it| {
        it.queue.in_flight_bytes
    }),
    (producer::SUBSCRIBER_DISCONNECTS, |it| it.queue.cuts),
];

impl Read<'_> {
    fn lag(&self) -> u64 {
        self.stats.span.next.saturating_sub(self.queue.position)
    }
}

/// All that [`read`] reads.
pub(super) fn figures() -> impl Iterator<Item = MetricDef> {
    let figures = ROWS.iter().map(|(figure, _)| *figure);
    figures.chain([
        producer::LAG_SECONDS,
        producer::SUBSCRIBER_LOST,
        producer::RESUMES,
        producer::SUBSCRIBERS_WITHOUT_SERIES,
        producer::STREAMS_WITHOUT_AGE_SUPPORT,
    ])
}

/// All of it; `ages` are those of the queues.
pub(super) fn read(queues: &[Snapshot], ages: &[Duration], stats: &Stats) -> Vec<MetricFamily> {
    let shown = || queues.iter().filter(|queue| queue.is_shown);
    let each = || {
        let pairs = queues.iter().zip(ages);
        let pairs = pairs.filter(|(queue, _)| queue.is_shown);
        pairs.map(|(queue, &age)| Read { queue, age, stats })
    };
    let figures = ROWS.iter().map(|(figure, value)| {
        let samples = each().map(|it| (labels(it.queue), as_f64(value(&it))));
        family(*figure, samples)
    });
    let ages = each().map(|it| (labels(it.queue), it.age.as_secs_f64()));
    let lost = shown().flat_map(|queue| {
        let [name, call] = labels(queue);
        [
            ([name, call, "lag_limit"], queue.totals.lost_lag_limit),
            ([name, call, "evicted"], queue.totals.lost_evicted),
        ]
    });
    let resumed = shown().flat_map(|queue| {
        let [name, call] = labels(queue);
        let by_outcome = RESUMES.into_iter().zip(queue.resumes);
        by_outcome.map(move |(outcome, count)| ([name, call, resume_label(outcome)], count))
    });
    let lost = lost.map(|(labels, count)| (labels, as_f64(count)));
    let resumed = resumed.map(|(labels, count)| (labels, as_f64(count)));
    let not_shown = as_f64((queues.len() - shown().count()) as u64);
    let is_without_age = |queue: &&Snapshot| queue.connected && !queue.supports_age;
    let without_age = as_f64(queues.iter().filter(is_without_age).count() as u64);
    figures
        .chain([
            family(producer::LAG_SECONDS, ages),
            family(producer::SUBSCRIBER_LOST, lost),
            family(producer::RESUMES, resumed),
            family(producer::SUBSCRIBERS_WITHOUT_SERIES, [([], not_shown)]),
            family(producer::STREAMS_WITHOUT_AGE_SUPPORT, [([], without_age)]),
        ])
        .collect()
}

fn labels(queue: &Snapshot) -> [&str; 2] {
    [&queue.name, queue.call.label()]
}
