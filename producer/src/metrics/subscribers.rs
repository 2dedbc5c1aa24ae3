//! How each subscriber stands, and what it got.

use std::time::Duration;

use prometheus::proto::MetricFamily;
use runtime::metrics::Family;

use super::as_f64;
use crate::{
    log::Stats,
    streams::subscribers::{RESUMES, Snapshot, resume_label},
};

const LABELS: &[&str] = &["subscriber", "call"];

/// A subscriber, the age of the oldest cookie before it, and the log.
struct Read<'a> {
    queue: &'a Snapshot,
    age: Duration,
    stats: &'a Stats,
}

/// A metric with one series for each subscriber, and how it is read.
type Figure = (Family, fn(&Read<'_>) -> f64);

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family::counter(name, help, LABELS)
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family::gauge(name, help, LABELS)
}

const FIGURES: &[Figure] = &[
    (
        gauge(
            "producer_subscriber_connected",
            "1 while a stream of the subscriber is open.",
        ),
        |it| as_f64(it.queue.connected.into()),
    ),
    (
        gauge(
            "producer_subscriber_lag_cookies",
            "Sealed cookies the subscriber's stream has not taken yet.",
        ),
        |it| as_f64(it.lag()),
    ),
    (
        gauge(
            "producer_subscriber_lag_cookies_max",
            "The greatest lag in cookies since the scrape before the last.",
        ),
        |it| as_f64(it.queue.lag_max.max(it.lag())),
    ),
    (
        gauge(
            "producer_subscriber_lag_seconds",
            "Age of the oldest sealed cookie that the subscriber's stream has not taken yet and the log still holds.",
        ),
        |it| it.age.as_secs_f64(),
    ),
    (
        counter(
            "producer_subscriber_appended_cookies_total",
            "Cookies in the log since the subscriber joined: delivered - undelivered + lost - recovered + queued.",
        ),
        |it| as_f64(it.queue.appended(it.stats.appended)),
    ),
    (
        counter(
            "producer_subscriber_delivered_cookies_total",
            "Cookies handed to the subscriber's stream, each counted once.",
        ),
        |it| as_f64(it.queue.totals.delivered),
    ),
    (
        counter(
            "producer_subscriber_redelivered_cookies_total",
            "Cookies handed to the subscriber's stream again after it came back.",
        ),
        |it| as_f64(it.queue.totals.redelivered),
    ),
    (
        counter(
            "producer_subscriber_undelivered_cookies_total",
            "Cookies counted as delivered that never arrived and are counted as lost since.",
        ),
        |it| as_f64(it.queue.totals.undelivered),
    ),
    (
        counter(
            "producer_subscriber_recovered_cookies_total",
            "Cookies counted as lost that were delivered after all, to an older cursor.",
        ),
        |it| as_f64(it.queue.totals.recovered),
    ),
    (
        gauge(
            "producer_subscriber_queued_cookies",
            "Cookies in the log, sealed or not, that are neither delivered nor lost yet.",
        ),
        |it| as_f64(it.queue.queued(it.stats.appended)),
    ),
    (
        counter(
            "producer_subscriber_sent_bytes_total",
            "Bytes handed to the subscriber's stream.",
        ),
        |it| as_f64(it.queue.totals.bytes),
    ),
    (
        counter(
            "producer_subscriber_streams_total",
            "Streams the subscriber opened.",
        ),
        |it| as_f64(it.queue.totals.streams),
    ),
    (
        gauge(
            "producer_subscriber_pinned_bytes",
            "Bytes handed to the subscriber's streams that their connections have not let go.",
        ),
        |it| as_f64(it.queue.pinned_bytes),
    ),
    (
        counter(
            "producer_subscriber_cut_total",
            "Streams of the subscriber cut off because all streams together held too much.",
        ),
        |it| as_f64(it.queue.cuts),
    ),
];

const LOST: Family = Family::counter(
    "producer_subscriber_lost_cookies_total",
    "Cookies the subscriber will not get, by reason.",
    &["subscriber", "call", "reason"],
);

const RESUMED: Family = Family::counter(
    "producer_subscriber_resumes_total",
    "Streams the subscriber opened, by how it was met.",
    &["subscriber", "call", "outcome"],
);

const NOT_SHOWN: Family = Family::gauge(
    "producer_subscribers_not_shown",
    "Subscribers that have no series of their own, since too many names came.",
    &[],
);

impl Read<'_> {
    fn lag(&self) -> u64 {
        self.stats.span.next.saturating_sub(self.queue.position)
    }
}

/// All that [`read`] reads.
pub(super) fn families() -> impl Iterator<Item = Family> {
    let figures = FIGURES.iter().map(|(family, _)| *family);
    figures.chain([LOST, RESUMED, NOT_SHOWN])
}

/// All of it; `ages` are those of the queues.
pub(super) fn read(queues: &[Snapshot], ages: &[Duration], stats: &Stats) -> Vec<MetricFamily> {
    let shown = || queues.iter().filter(|queue| queue.is_shown);
    let each = || {
        let pairs = queues.iter().zip(ages);
        let pairs = pairs.filter(|(queue, _)| queue.is_shown);
        pairs.map(|(queue, &age)| Read { queue, age, stats })
    };
    let figures = FIGURES
        .iter()
        .map(|(family, value)| family.with(each().map(|it| (labels(it.queue), value(&it)))));
    let lost = shown().flat_map(|queue| {
        let [name, call] = labels(queue);
        [
            ([name, call, "queue_bound"], queue.totals.lost_queue_bound),
            ([name, call, "log_moved_on"], queue.totals.lost_log_moved_on),
        ]
    });
    let resumed = shown().flat_map(|queue| {
        let [name, call] = labels(queue);
        let by_outcome = RESUMES.into_iter().zip(queue.resumes);
        by_outcome.map(move |(outcome, count)| ([name, call, resume_label(outcome)], count))
    });
    figures
        .chain([
            LOST.with(lost.map(|(labels, count)| (labels, as_f64(count)))),
            RESUMED.with(resumed.map(|(labels, count)| (labels, as_f64(count)))),
            NOT_SHOWN.with([([""; 0], as_f64((queues.len() - shown().count()) as u64))]),
        ])
        .collect()
}

fn labels(queue: &Snapshot) -> [&str; 2] {
    [&queue.name, queue.call.label()]
}
