//! Outcomes of the cookies received by a consumer.

use serde::Serialize;

use crate::scrape::{Samples, names};

/// Received cookies by outcome, with terms of `metric_defs::equations::LEDGER`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CookieOutcomes {
    /// Received from producers.
    pub received: u64,
    /// Written to the store.
    pub written: u64,
    /// Superseded by a newer cookie in the same batch.
    pub superseded: u64,
    /// Suppressed as duplicates of stored cookies.
    pub suppressed: u64,
    /// Older than the stored cookie.
    pub stale: u64,
    /// Malformed, or permanently rejected by the store.
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

    /// Cookies with a known outcome.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.written + self.superseded + self.suppressed + self.stale + self.failed
    }

    /// Combines each count with that of `others`, such as by addition.
    pub(crate) fn combine(&self, others: &Self, with: fn(u64, u64) -> u64) -> Self {
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
