//! What is counted of the night's work.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use metric_defs::consumer;
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec, Result};
use runtime::metrics::Registry;

use super::gauge_value;
use crate::store::SweepProgress;

/// Most DSPs whose cookies are shown as overdue.
const OVERDUE_MAX: usize = 20;

/// What maintenance counts.
#[derive(Clone, Debug)]
pub struct Maintenance {
    /// Whether this consumer does it, and no other for the same store.
    pub owner: IntGauge,
    /// Whether the expiry window is open.
    pub expiry_open: IntGauge,
    overdue: IntGaugeVec,
    /// How far the oldest cookie is beyond its time to live, in seconds.
    pub overdue_max: IntGauge,
    /// When the last expiry ended, in seconds since the Unix epoch.
    pub expiry_ended: IntGauge,
    /// Whether the compaction window is open.
    pub compaction_open: IntGauge,
    /// When the last compaction ended, in seconds since the Unix epoch.
    pub compaction_ended: IntGauge,
    /// Expired cookies that were found to be deleted.
    pub expired: IntCounter,
    /// Cookies that sweeps looked at.
    pub swept: IntCounter,
    /// Cookies that the sweep has yet to look at.
    pub sweep_remaining: IntGauge,
    /// Seconds of the compaction of each collection.
    pub compaction_seconds: Histogram,
    /// Bytes that compactions gave back.
    pub compaction_freed_bytes: IntCounter,
    /// Nights in which everything worth it was compacted.
    pub compactions: IntCounter,
    /// Expiries and compactions that failed.
    pub errors: IntCounter,
}

impl Maintenance {
    pub(super) fn register(registry: &Registry) -> Result<Self> {
        let owner: IntGauge = registry.add(consumer::MAINTENANCE_OWNER)?;
        owner.set(1);
        Ok(Self {
            owner,
            overdue: registry.add(consumer::EXPIRY_OVERDUE)?,
            overdue_max: registry.add(consumer::EXPIRY_OVERDUE_MAX)?,
            expiry_open: registry.add(consumer::EXPIRY_WINDOW_OPEN)?,
            expiry_ended: registry.add(consumer::EXPIRY_LAST_RUN)?,
            compaction_ended: registry.add(consumer::COMPACTION_LAST_RUN)?,
            compaction_open: registry.add(consumer::COMPACTION_WINDOW_OPEN)?,
            expired: registry.add(consumer::EXPIRED)?,
            swept: registry.add(consumer::SWEPT)?,
            sweep_remaining: registry.add(consumer::SWEEP_REMAINING)?,
            compaction_seconds: registry.add(consumer::COMPACTION_SECONDS)?,
            compaction_freed_bytes: registry.add(consumer::COMPACTION_FREED_BYTES)?,
            compactions: registry.add(consumer::COMPACTIONS)?,
            errors: registry.add(consumer::MAINTENANCE_ERRORS)?,
        })
    }

    /// Counts a part of a sweep.
    pub fn swept(&self, swept: &SweepProgress) {
        self.swept.inc_by(swept.looked);
        self.expired.inc_by(swept.deleted);
        if let Some(left) = swept.left {
            self.sweep_remaining.set(gauge_value(left));
        }
    }

    /// Shows how far the oldest cookies of these DSPs, and of no others, are beyond their time to live.
    pub fn show_overdue(&self, overdue: &BTreeMap<u32, Duration>) {
        let seconds = |over: &Duration| i64::try_from(over.as_secs()).unwrap_or(i64::MAX);
        let mut worst: Vec<_> = overdue.iter().collect();
        worst.sort_unstable_by_key(|&(_, over)| Reverse(over));
        self.overdue.reset();
        for (dsp_id, over) in worst.iter().take(OVERDUE_MAX) {
            let label = dsp_id.to_string();
            let gauge = self.overdue.with_label_values(&[label.as_str()]);
            gauge.set(seconds(over));
        }
        let max = worst.first().map_or(0, |(_, over)| seconds(over));
        self.overdue_max.set(max);
    }
}
