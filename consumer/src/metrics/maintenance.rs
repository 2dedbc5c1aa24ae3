//! Metrics of the maintenance of the store: expiry and compaction.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use metric_defs::consumer;
use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec, Result};
use proto::units::DspId;
use runtime::metrics::Registry;

use super::gauge_value;
use crate::store::SweepProgress;

/// Maximum number of DSPs with a series for their overdue time.
const OVERDUE_MAX: usize = 20;

/// Metrics of maintenance.
#[derive(Clone, Debug)]
pub struct Maintenance {
    /// 1 if this consumer owns maintenance of its store.
    pub owner: IntGauge,
    /// 1 while the expiry window is open.
    pub expiry_open: IntGauge,
    overdue: IntGaugeVec,
    /// How long ago the oldest expired cookie in the store expired, in seconds.
    pub overdue_max: IntGauge,
    /// When the last expiry ended, in seconds since the Unix epoch.
    pub expiry_ended: IntGauge,
    /// 1 while the compaction window is open.
    pub compaction_open: IntGauge,
    /// When the last compaction ended, in seconds since the Unix epoch.
    pub compaction_ended: IntGauge,
    /// Expired cookies known to be deleted.
    pub expired: IntCounter,
    /// Cookies scanned by sweeps.
    pub swept: IntCounter,
    /// Cookies that the sweep has not scanned yet.
    pub sweep_remaining: IntGauge,
    /// Duration of the compaction of each collection, in seconds.
    pub compaction_seconds: Histogram,
    /// Bytes reclaimed by compactions.
    pub compaction_freed_bytes: IntCounter,
    /// Complete compactions.
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

    /// Adds a step of a sweep.
    pub fn add_sweep(&self, progress: &SweepProgress) {
        self.swept.inc_by(progress.scanned);
        self.expired.inc_by(progress.deleted);
        if let Some(remaining) = progress.remaining {
            self.sweep_remaining.set(gauge_value(remaining));
        }
    }

    /// Sets how long ago the oldest cookie of each DSP expired, and removes all other DSPs.
    pub fn set_overdue(&self, overdue: &BTreeMap<DspId, Duration>) {
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
