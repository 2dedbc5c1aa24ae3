//! Metrics of batches and the store.

use metric_defs::consumer;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Result};
use runtime::metrics::{Latency, Registry, value};

use crate::ledger::Ledger;

/// Metrics of the sink.
#[derive(Clone, Debug)]
pub struct Sink {
    /// The ledger, shared with subscriptions.
    pub ledger: Ledger,
    /// Dead letters by outcome: `written` or `failed`.
    pub dead_letters: IntCounterVec,
    /// Bytes in the retry queue.
    pub retry_queue_bytes: IntGauge,
    /// Cookies whose acceptance time was clamped.
    pub clock_clamped: IntCounter,
    /// Durable batches.
    pub batches: IntCounter,
    /// Number of cookies per batch.
    pub batch_cookies: Histogram,
    /// Time to make a batch durable, including retries.
    pub flush_seconds: Histogram,
    /// Time from acceptance, or release if later, to durability, per cookie.
    pub stored_seconds: Latency,
    /// Failed store operations.
    pub store_errors: IntCounter,
    /// Accepted unlisted DSPs.
    pub dsp_slots: IntGauge,
    /// Maximum number of accepted unlisted DSPs.
    pub dsp_slots_max: IntGauge,
    /// Drained producers whose cookies are all durable.
    pub producer_drains: IntCounter,
}

impl Sink {
    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        let dead_letters: IntCounterVec = registry.add(consumer::DEAD_LETTERS)?;
        for outcome in ["written", "failed"] {
            dead_letters.with_label_values(&[outcome]);
        }
        let waiting = ledger.clone();
        registry.read(move || {
            let oldest = waiting.oldest_waiting().as_secs_f64();
            vec![value(consumer::OLDEST_WAITING, oldest)]
        })?;
        Ok(Self {
            ledger,
            dead_letters,
            retry_queue_bytes: registry.add(consumer::RETRY_QUEUE_BYTES)?,
            clock_clamped: registry.add(consumer::CLOCK_CLAMPED)?,
            batches: registry.add(consumer::BATCHES)?,
            batch_cookies: registry.add(consumer::BATCH_COOKIES)?,
            flush_seconds: registry.add(consumer::FLUSH_SECONDS)?,
            stored_seconds: registry.add(consumer::STORED_SECONDS)?,
            store_errors: registry.add(consumer::STORE_ERRORS)?,
            dsp_slots: registry.add(consumer::DSP_SLOTS)?,
            dsp_slots_max: registry.add(consumer::DSP_SLOTS_LIMIT)?,
            producer_drains: registry.add(consumer::PRODUCER_DRAINS)?,
        })
    }
}
