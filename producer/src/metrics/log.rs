//! What the log holds, and what it has sealed and why.

use prometheus::proto::MetricFamily;
use runtime::metrics::Family;

use super::as_f64;
use crate::log::Stats;

/// A metric without labels, and how it is read.
type Figure = (Family, fn(&Stats) -> f64);

const FIGURES: &[Figure] = &[
    (
        Family::counter(
            "producer_cookies_appended_total",
            "Cookies in the log since start, which is what clients were told was accepted.",
            &[],
        ),
        |stats| as_f64(stats.appended),
    ),
    (
        Family::counter(
            "producer_log_sealed_bytes_total",
            "Bytes of sealed chunks since start, each counted once.",
            &[],
        ),
        |stats| as_f64(stats.sealed_bytes),
    ),
    (
        Family::gauge("producer_log_bytes", "Bytes the log holds.", &[]),
        |stats| as_f64(stats.bytes as u64),
    ),
    (
        Family::gauge(
            "producer_log_limit_bytes",
            "Most bytes the log may hold.",
            &[],
        ),
        |stats| as_f64(stats.bytes_max as u64),
    ),
    (
        Family::gauge("producer_log_chunks", "Chunks the log holds.", &[]),
        |stats| as_f64(stats.chunks as u64),
    ),
    (
        Family::gauge("producer_log_cookies", "Sealed cookies the log holds.", &[]),
        |stats| as_f64(stats.span.next - stats.span.oldest),
    ),
    (
        Family::gauge(
            "producer_log_reach_seconds",
            "Age of the oldest chunk held: how long a subscriber may be away and miss nothing, unless its bound is less.",
            &[],
        ),
        |stats| stats.retained.as_secs_f64(),
    ),
];

const SEALED: Family = Family::counter(
    "producer_log_chunks_sealed_total",
    "Chunks sealed since start: because they were full, because they were old, or at the end.",
    &["reason"],
);

/// All that [`read`] reads.
pub(super) fn families() -> impl Iterator<Item = Family> {
    FIGURES.iter().map(|(family, _)| *family).chain([SEALED])
}

/// All of it.
pub(super) fn read(stats: &Stats) -> Vec<MetricFamily> {
    let figures = FIGURES
        .iter()
        .map(|(family, value)| family.with([([], value(stats))]));
    let sealed = [
        (["size"], as_f64(stats.sealed_by_size)),
        (["age"], as_f64(stats.sealed_by_age)),
        (["drain"], as_f64(stats.sealed_by_drain)),
    ];
    figures.chain([SEALED.with(sealed)]).collect()
}
