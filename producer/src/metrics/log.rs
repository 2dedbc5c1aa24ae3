//! Metrics of the log.

use metric_defs::{MetricDef, producer};
use runtime::metrics::{Family, as_f64, family, value};

use crate::log::Stats;

/// A metric without labels, and its value.
type Row = (MetricDef, fn(&Stats) -> u64);

const ROWS: &[Row] = &[
    (producer::APPENDED, |stats| stats.appended),
    (producer::LAST_DELETION, |stats| stats.last_deletion.0),
    (producer::LOG_BYTES, |stats| stats.bytes as u64),
    (producer::LOG_LIMIT_BYTES, |stats| stats.bytes_max as u64),
    (producer::LOG_CHUNKS, |stats| stats.chunks as u64),
    (producer::LOG_COOKIES, |stats| {
        stats.span.next.since(stats.span.oldest)
    }),
];

/// Current values of all metrics.
pub(super) fn read(stats: &Stats) -> Vec<Family> {
    let metrics = ROWS.iter();
    let metrics = metrics.map(|(metric, count)| value(*metric, as_f64(count(stats))));
    let retained = value(producer::LOG_RETAINED, stats.retained.as_secs_f64());
    let sealed = [
        (["size"], as_f64(stats.sealed.by_size)),
        (["age"], as_f64(stats.sealed.by_age)),
        (["drain"], as_f64(stats.sealed.by_drain)),
    ];
    let sealed = family(producer::LOG_CHUNKS_SEALED, sealed);
    metrics.chain([retained, sealed]).collect()
}
