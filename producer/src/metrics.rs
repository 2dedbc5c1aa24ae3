//! Metrics of the log and of the subscribers, read at each scrape.
//!
//! They cost nothing per cookie: the log counts under a lock that it holds anyway, and streams count per chunk. The series
//! of a removed subscriber disappear.
//!
//! The counters of each subscriber and of the archive balance exactly in every scrape, see [`metric_defs::equations`]. They are
//! therefore read before the log.

mod log;
mod subscribers;

use metric_defs::{MetricDef, producer};
use prometheus::{IntCounterVec, IntGauge};
use runtime::metrics::{Registry, as_f64, family, value};

use crate::{
    archive,
    log::Log,
    streams::subscribers::{Confirmed, Subscribers},
};

/// Registers a counter with one label, whose samples begin at 0 for these values.
#[track_caller]
pub(crate) fn counters<'a>(
    registry: &Registry,
    metric: MetricDef,
    values: impl IntoIterator<Item = &'a str>,
) -> prometheus::Result<IntCounterVec> {
    let counters: IntCounterVec = registry.add(metric)?;
    for value in values {
        counters.with_label_values(&[value]);
    }
    Ok(counters)
}

/// Registers the metrics of the log, the subscribers and the process. `queue_cookies_max` is the maximum lag of a subscriber.
///
/// # Errors
/// When one of the metrics is registered already.
pub fn register(
    registry: &Registry,
    log: &Log,
    subscribers: &Subscribers,
    queue_cookies_max: u64,
    archive: archive::Status,
) -> prometheus::Result<()> {
    let limit: IntGauge = registry.add(producer::SUBSCRIBER_LIMIT)?;
    limit.set(i64::try_from(queue_cookies_max).unwrap_or(i64::MAX));
    let (log, subscribers) = (log.clone(), subscribers.clone());
    let (head, intervals) = (log.clone(), subscribers.clone());
    registry.on_scrape(move || intervals.end_interval(head.span().next));
    registry.read(move || {
        let archive = archive.families();
        let snapshots = subscribers.snapshot();
        let stats = log.stats();
        let ages = log.ages(snapshots.iter().map(|it| it.position));
        let mut families = log::read(&stats);
        families.extend(archive(&stats));
        families.extend(subscribers::read(&snapshots, &ages, &stats));
        let (nodes, evicted) = subscribers.confirmed(stats.last_deletion, stats.last_deletion);
        let unknown = nodes.values().filter(|it| **it == Confirmed::Unknown);
        let unknown = as_f64(unknown.count() as u64 + evicted);
        families.push(value(producer::UNKNOWN_NODES, unknown));
        let reporting = subscribers.reporting();
        let counts = [
            ("verified", reporting.verified),
            ("unverified", reporting.unverified.len()),
        ];
        let counts = counts.map(|(report, nodes)| ([report], as_f64(nodes as u64)));
        families.push(family(producer::REPORTING_NODES, counts));
        let rejected = as_f64(reporting.rejected);
        families.push(value(producer::REPORTS_REJECTED, rejected));
        families
    })
}
