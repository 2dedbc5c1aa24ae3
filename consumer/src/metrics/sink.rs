//! What is counted of batches and of the store.

use metric_defs::consumer;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Result};
use runtime::metrics::{Latency, Registry};

use crate::ledger::Ledger;

/// What the sink counts.
#[derive(Clone, Debug)]
pub struct Sink {
    /// What became of every cookie; shared with the subscriptions.
    pub ledger: Ledger,
    /// Cookies that the store refused forever, by whether they are in the file: `written` or `failed`.
    pub dead_letters: IntCounterVec,
    /// Cookies whose time of acceptance was cut down.
    pub clock_clamped: IntCounter,
    /// Batches written.
    pub batches: IntCounter,
    /// Cookies of each batch.
    pub batch_cookies: Histogram,
    /// How long the store took for each batch, retries included.
    pub flush_seconds: Histogram,
    /// From accepted at the edge to durable in the store, cookie by cookie.
    pub stored_seconds: Latency,
    /// Failed attempts to use the store.
    pub store_errors: IntCounter,
    /// Whether the store works.
    pub store_up: IntGauge,
    /// DSPs that are not listed and have a slot in the store.
    pub dsp_slots: IntGauge,
    /// How many may get one.
    pub dsp_slots_max: IntGauge,
    /// Goodbyes of producers of which everything is durable.
    pub completed_epochs: IntCounter,
}

impl Sink {
    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        let dead_letters: IntCounterVec = registry.add(consumer::DEAD_LETTERS)?;
        for outcome in ["written", "failed"] {
            dead_letters.with_label_values(&[outcome]);
        }
        Ok(Self {
            ledger,
            dead_letters,
            clock_clamped: registry.add(consumer::CLOCK_CLAMPED)?,
            batches: registry.add(consumer::BATCHES)?,
            batch_cookies: registry.add(consumer::BATCH_COOKIES)?,
            flush_seconds: registry.add(consumer::FLUSH_SECONDS)?,
            stored_seconds: registry.add(consumer::STORED_SECONDS)?,
            store_errors: registry.add(consumer::STORE_ERRORS)?,
            store_up: registry.add(consumer::STORE_UP)?,
            dsp_slots: registry.add(consumer::DSP_SLOTS)?,
            dsp_slots_max: registry.add(consumer::DSP_SLOTS_LIMIT)?,
            completed_epochs: registry.add(consumer::PRODUCER_DRAINS)?,
        })
    }
}
