//! The size of the table of deletions.

use metric_defs::consumer;
use prometheus::Result;
use runtime::metrics::{Registry, family};

use crate::deletions::Deletions;

/// Registers the metrics of `deletions`.
///
/// # Errors
/// When a name is taken.
pub fn register(registry: &Registry, deletions: Deletions) -> Result<()> {
    let metrics = [
        consumer::DELETION_TABLE,
        consumer::DELETION_TABLE_MAX,
        consumer::DELETION_JOBS,
    ];
    registry.read(metrics, move || {
        let (entries, max) = deletions.size();
        let values = [entries, max, deletions.jobs()];
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let of = |(metric, value)| family(metric, [(&[] as &[&str], value as f64)]);
        metrics.into_iter().zip(values).map(of).collect()
    })
}
