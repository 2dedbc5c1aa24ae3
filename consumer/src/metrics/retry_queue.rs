//! What is counted of cookies that are set aside, beside the ledger.

use std::collections::BTreeSet;

use metric_defs::consumer;
use prometheus::{IntGauge, IntGaugeVec, Result};
use runtime::metrics::Registry;

use crate::ledger::Ledger;

/// Most DSPs that are named as failing.
const FAILING_MAX: usize = 64;

/// What is counted of cookies that are set aside.
#[derive(Clone, Debug)]
pub struct RetryQueue {
    /// How many there are, and what becomes of them.
    pub ledger: Ledger,
    /// Bytes that they take in the queue.
    pub bytes: IntGauge,
    failing: IntGaugeVec,
}

impl RetryQueue {
    /// Shows these as failing, and no others.
    pub fn fail(&self, dsps: &BTreeSet<u32>) {
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
        let retry_queue = Self {
            ledger,
            bytes: registry.add(consumer::RETRY_QUEUE_BYTES)?,
            failing: registry.add(consumer::DSP_FAILING)?,
        };
        retry_queue.fail(&BTreeSet::new());
        Ok(retry_queue)
    }
}
