//! What is counted of batches and of the store.

use prometheus::{Histogram, IntCounter, IntGauge, Result};
use runtime::metrics::Latency;

use super::{Names, SECONDS};
use crate::ledger::Ledger;

/// What the sink counts.
#[derive(Clone, Debug)]
pub struct Sink {
    /// What became of every cookie; shared with the subscriptions.
    pub ledger: Ledger,
    /// What became of the cookies that the store refused for ever.
    pub dead_letters: DeadLetters,
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
    /// DSPs that are not listed and have a place in the store.
    pub places: IntGauge,
    /// How many may get one.
    pub places_max: IntGauge,
    /// Goodbyes of producers of which everything is durable.
    pub goodbyes: IntCounter,
}

/// Letters for cookies that the store refused for ever.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// Letters in the file.
    pub written: IntCounter,
    /// Letters that could not be written.
    pub failed: IntCounter,
}

impl Sink {
    pub(super) fn register(names: &Names<'_>, ledger: Ledger) -> Result<Self> {
        Ok(Self {
            ledger,
            dead_letters: DeadLetters::register(names)?,
            clock_clamped: names.counter(
                "clock_clamped_total",
                "Cookies accepted more than 5 minutes ahead of this machine's clock; their time was cut down.",
            )?,
            batches: names.counter("batches_total", "Batches made durable.")?,
            batch_cookies: names.histogram(
                "batch_cookies",
                "Cookies of a batch.",
                &[1.0, 10.0, 100.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 1e6],
            )?,
            flush_seconds: names.histogram(
                "flush_seconds",
                "Time until the store had made a batch durable, retries included.",
                SECONDS,
            )?,
            stored_seconds: names.latency(
                "stored_seconds",
                "Time from accepted at the edge to durable in the store, cookie by cookie.",
            )?,
            store_errors: names.counter("store_errors_total", "Failed attempts to use the store.")?,
            store_up: names.gauge("store_up", "1 while the store works.")?,
            places: names.gauge(
                "dsp_places",
                "DSPs that are not listed in --dsps and have a place in the store.",
            )?,
            places_max: names.gauge(
                "dsp_places_limit",
                "Most DSPs that get a place by being seen: --dsps-max. Cookies of others are refused.",
            )?,
            goodbyes: names.counter(
                "producer_goodbyes_total",
                "Producers that said goodbye and of which everything before that is stored, or was declared lost.",
            )?,
        })
    }
}

impl DeadLetters {
    fn register(names: &Names<'_>) -> Result<Self> {
        let letters = names.counters(
            "dead_letters_total",
            "Letters for cookies that the store refused for ever, by outcome: written to the file, or failed to be.",
            "outcome",
        )?;
        Ok(Self {
            written: letters.with_label_values(&["written"]),
            failed: letters.with_label_values(&["failed"]),
        })
    }
}
