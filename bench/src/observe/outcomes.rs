//! What became of the cookies that a consumer received.

use serde::Serialize;

use crate::scrape::{Samples, names};

/// Cookies received, and those that have each fate: terms of `metric_defs::equations::LEDGER`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CookieOutcomes {
    /// Received from producers.
    pub received: u64,
    /// Written to the store.
    pub written: u64,
    /// Replaced by a newer one in the same batch.
    pub superseded: u64,
    /// Left out because they repeat what is stored.
    pub suppressed: u64,
    /// Not written because the store has a newer one.
    pub stale: u64,
    /// Malformed, or refused by the store forever.
    pub failed: u64,
}

impl CookieOutcomes {
    pub(crate) fn read(samples: &Samples) -> Self {
        let count = |name| samples.count(name, &[]);
        Self {
            received: count(names::RECEIVED),
            written: count(names::WRITTEN),
            superseded: count(names::SUPERSEDED),
            suppressed: count(names::SUPPRESSED),
            stale: count(names::STALE),
            failed: count(names::FAILED),
        }
    }

    /// Those whose fate is known.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.written + self.superseded + self.suppressed + self.stale + self.failed
    }

    /// Each count with the same of `others`: their sums, or differences.
    pub(crate) fn with(&self, others: &Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            received: with(self.received, others.received),
            written: with(self.written, others.written),
            superseded: with(self.superseded, others.superseded),
            suppressed: with(self.suppressed, others.suppressed),
            stale: with(self.stale, others.stale),
            failed: with(self.failed, others.failed),
        }
    }
}
