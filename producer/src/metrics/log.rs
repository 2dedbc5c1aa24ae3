//! What the log holds, and what it has sealed and why.

use figures::{Figure, producer};
use prometheus::proto::MetricFamily;
use runtime::metrics::family;

use super::as_f64;
use crate::log::Stats;

/// A metric without labels, and how it is read.
type Row = (Figure, fn(&Stats) -> f64);

const ROWS: &[Row] = &[
    (producer::APPENDED, |stats| as_f64(stats.appended)),
    (producer::LOG_SEALED_BYTES, |stats| {
        as_f64(stats.sealed_bytes)
    }),
    (producer::LOG_BYTES, |stats| as_f64(stats.bytes as u64)),
    (producer::LOG_LIMIT_BYTES, |stats| {
        as_f64(stats.bytes_max as u64)
    }),
    (producer::LOG_CHUNKS, |stats| as_f64(stats.chunks as u64)),
    (producer::LOG_COOKIES, |stats| {
        as_f64(stats.span.next - stats.span.oldest)
    }),
    (producer::LOG_RETAINED, |stats| stats.retained.as_secs_f64()),
];

/// All that [`read`] reads.
pub(super) fn figures() -> impl Iterator<Item = Figure> {
    let figures = ROWS.iter().map(|(figure, _)| *figure);
    figures.chain([producer::LOG_CHUNKS_SEALED])
}

/// All of it.
pub(super) fn read(stats: &Stats) -> Vec<MetricFamily> {
    let figures = ROWS
        .iter()
        .map(|(figure, value)| family(*figure, [([], value(stats))]));
    let sealed = [
        (["size"], as_f64(stats.sealed_by_size)),
        (["age"], as_f64(stats.sealed_by_age)),
        (["drain"], as_f64(stats.sealed_by_drain)),
    ];
    let sealed = family(producer::LOG_CHUNKS_SEALED, sealed);
    figures.chain([sealed]).collect()
}
