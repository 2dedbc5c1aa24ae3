//! Metrics of the log.

use metric_defs::{MetricDef, producer};
use prometheus::proto::MetricFamily;
use runtime::metrics::family;

use super::as_f64;
use crate::log::Stats;

/// A metric without labels, and its value.
type Row = (MetricDef, fn(&Stats) -> u64);

const ROWS: &[Row] = &[
    (producer::APPENDED, |stats| stats.appended),
    (producer::LOG_SEALED_BYTES, |stats| stats.sealed_bytes),
    (producer::LOG_BYTES, |stats| stats.bytes as u64),
    (producer::LOG_LIMIT_BYTES, |stats| stats.bytes_max as u64),
    (producer::LOG_CHUNKS, |stats| stats.chunks as u64),
    (producer::LOG_COOKIES, |stats| {
        stats.span.next - stats.span.oldest
    }),
];

/// Definitions of the metrics that [`read`] returns.
pub(super) fn metrics() -> impl Iterator<Item = MetricDef> {
    let metrics = ROWS.iter().map(|(metric, _)| *metric);
    metrics.chain([producer::LOG_RETAINED, producer::LOG_CHUNKS_SEALED])
}

/// Current values of all metrics.
pub(super) fn read(stats: &Stats) -> Vec<MetricFamily> {
    let metrics = ROWS.iter();
    let metrics = metrics.map(|(metric, value)| family(*metric, [([], as_f64(value(stats)))]));
    let retained = family(producer::LOG_RETAINED, [([], stats.retained.as_secs_f64())]);
    let sealed = [
        (["size"], as_f64(stats.sealed_by_size)),
        (["age"], as_f64(stats.sealed_by_age)),
        (["drain"], as_f64(stats.sealed_by_drain)),
    ];
    let sealed = family(producer::LOG_CHUNKS_SEALED, sealed);
    metrics.chain([retained, sealed]).collect()
}
