//! Metrics of the deletion table.

use metric_defs::consumer;
use prometheus::Result;
use runtime::metrics::{Registry, as_f64, value};

use crate::deletions::Deletions;

/// Registers the metrics of `deletions`.
///
/// # Errors
/// When a name is already registered.
pub fn register(registry: &Registry, deletions: Deletions) -> Result<()> {
    registry.read(move || {
        let (entries, max) = deletions.size();
        let count = |metric, count: usize| value(metric, as_f64(count as u64));
        vec![
            count(consumer::DELETION_TABLE, entries),
            count(consumer::DELETION_TABLE_MAX, max),
            count(consumer::DELETION_JOBS, deletions.jobs().len()),
        ]
    })
}
