//! Metrics of the retry queue, in addition to those of the ledger.

use metric_defs::consumer;
use prometheus::{IntGauge, Result};
use runtime::metrics::Registry;

use crate::ledger::Ledger;

/// Metrics of the retry queue.
#[derive(Clone, Debug)]
pub struct RetryQueue {
    /// The ledger, which counts the cookies.
    pub ledger: Ledger,
    /// Bytes in the queue.
    pub bytes: IntGauge,
}

impl RetryQueue {
    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        Ok(Self {
            ledger,
            bytes: registry.add(consumer::RETRY_QUEUE_BYTES)?,
        })
    }
}
