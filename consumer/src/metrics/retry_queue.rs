//! Metrics of the retry queue, in addition to the ledger.

use std::collections::BTreeSet;

use metric_defs::consumer;
use prometheus::{IntGauge, IntGaugeVec, Result};
use runtime::metrics::Registry;

use crate::ledger::Ledger;

/// Maximum number of failing DSPs with their own series.
const FAILING_MAX: usize = 64;

/// Metrics of the retry queue.
#[derive(Clone, Debug)]
pub struct RetryQueue {
    /// The ledger, which counts the cookies.
    pub ledger: Ledger,
    /// Bytes in the queue.
    pub bytes: IntGauge,
    failing: IntGaugeVec,
}

impl RetryQueue {
    /// Replaces the set of failing DSPs.
    pub fn set_failing(&self, dsps: &BTreeSet<u32>) {
        self.failing.reset();
        let mut named = dsps.iter();
        for dsp_id in named.by_ref().take(FAILING_MAX) {
            let label = dsp_id.to_string();
            self.failing.with_label_values(&[label.as_str()]).set(1);
        }
        let has_more = named.next().is_some();
        let others = self.failing.with_label_values(&["other"]);
        others.set(i64::from(has_more));
    }

    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        let metrics = Self {
            ledger,
            bytes: registry.add(consumer::RETRY_QUEUE_BYTES)?,
            failing: registry.add(consumer::DSP_FAILING)?,
        };
        metrics.set_failing(&BTreeSet::new());
        Ok(metrics)
    }
}
