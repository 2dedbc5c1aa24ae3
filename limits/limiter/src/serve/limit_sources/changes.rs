//! How many versions of each source were taken, and how many refused.

use figures::limiter::CHANGES;
use prometheus::{IntCounterVec, Result};
use runtime::metrics::Registry;

use super::plan::Source;

/// What is counted of versions of limits.
#[derive(Debug, Clone)]
pub struct Changes(IntCounterVec);

impl Changes {
    /// Registers what it counts.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> Result<Self> {
        let changes: IntCounterVec = registry.add(CHANGES)?;
        for source in Source::ALL {
            for outcome in ["done", "refused"] {
                changes.with_label_values(&[source.name(), outcome]);
            }
        }
        Ok(Self(changes))
    }

    pub(super) fn taken(&self, source: Source) {
        self.0.with_label_values(&[source.name(), "done"]).inc();
    }

    pub(super) fn refused(&self, source: Source) {
        self.0.with_label_values(&[source.name(), "refused"]).inc();
    }
}
