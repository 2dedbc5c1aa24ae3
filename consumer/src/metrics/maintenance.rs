//! What is counted of the night's work.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use prometheus::{Gauge, Histogram, IntCounter, IntGauge, IntGaugeVec, Result};

use super::Names;

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
    /// The last expiry.
    pub expiry: Run,
    /// Whether the compaction window is open.
    pub compaction_open: IntGauge,
    /// The last compaction.
    pub compaction: Run,
    /// Expired cookies that were found to be deleted.
    pub expired: IntCounter,
    /// Cursors that were forgotten.
    pub forgotten_cursors: IntCounter,
    /// Seconds of the compaction of each collection.
    pub compaction_seconds: Histogram,
    /// Bytes that compactions gave back.
    pub compaction_freed_bytes: IntCounter,
    /// Collections that were not worth a compaction.
    pub compaction_skipped: IntCounter,
    /// Nights in which everything worth it was compacted.
    pub compactions: IntCounter,
    /// Expiries and compactions that failed.
    pub errors: IntCounter,
}

/// When something that runs at night last ran, and how long it took.
#[derive(Clone, Debug)]
pub struct Run {
    ended: IntGauge,
    seconds: Gauge,
}

impl Maintenance {
    pub(super) fn register(names: &Names<'_>) -> Result<Self> {
        let owner = names.gauge(
            "maintenance_owner",
            "1 if this consumer sees to expiry and compaction of its store, 0 if another does that shares it.",
        )?;
        owner.set(1);
        Ok(Self {
            owner,
            overdue: names.gauges(
                "expiry_overdue_seconds",
                "How far the oldest cookie of a DSP is beyond its time to live, for the 20 DSPs where that is most; MongoDB only. Less than a day is usual: what expires by day waits for the window.",
                "dsp",
            )?,
            overdue_max: names.gauge(
                "expiry_overdue_max_seconds",
                "The greatest of them.",
            )?,
            expiry_open: names.gauge("expiry_window_open", "1 while expiry may run.")?,
            expiry: Run::register(names, "expiry")?,
            compaction: Run::register(names, "compaction")?,
            compaction_open: names
                .gauge("compaction_window_open", "1 while compaction may run.")?,
            expired: names.counter(
                "expired_total",
                "Expired cookies found to be deleted, older values included.",
            )?,
            forgotten_cursors: names.counter(
                "forgotten_cursors_total",
                "Cursors deleted because their producer sent nothing for as long as cookies live.",
            )?,
            compaction_seconds: names.histogram(
                "compaction_seconds",
                "Time the compaction of each collection took.",
                &[
                    0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0,
                ],
            )?,
            compaction_freed_bytes: names.counter(
                "compaction_freed_bytes_total",
                "Bytes that compactions gave back to the file system.",
            )?,
            compaction_skipped: names.counter(
                "compaction_skipped_total",
                "Collections that were not compacted because there was little to gain.",
            )?,
            compactions: names.counter(
                "compactions_total",
                "Times that everything worth it was compacted, one a night.",
            )?,
            errors: names.counter(
                "maintenance_errors_total",
                "Expiries, compactions and deletions of cursors that failed.",
            )?,
        })
    }
}

impl Maintenance {
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

impl Run {
    #[track_caller]
    fn register(names: &Names<'_>, what: &str) -> Result<Self> {
        Ok(Self {
            ended: names.gauge(
                &format!("{what}_last_run_unix_seconds"),
                "When it last ran in its window without an error, in seconds since the Unix epoch; 0 before.",
            )?,
            seconds: names.seconds(
                &format!("{what}_last_run_duration_seconds"),
                "How long that took.",
            )?,
        })
    }

    /// It ran without an error, until now.
    pub fn ended(&self, now: Timestamp, took: Duration) {
        self.ended.set(now.as_second());
        self.seconds.set(took.as_secs_f64());
    }
}
