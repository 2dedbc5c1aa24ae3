//! Every metric of this process, one struct a component, registered on an injected registry.
//!
//! Counters move once a chunk or a batch, never once a cookie.

mod latency;

use cookiesync::v1::GapReason;
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    Result,
};

use crate::ledger::Ledger;
pub use latency::Latency;

/// All metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What subscriptions count.
    pub subscription: Subscription,
    /// What the sink counts.
    pub sink: Sink,
    /// What maintenance counts.
    pub maintenance: Maintenance,
}

/// What subscriptions count.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Bytes of messages received.
    pub bytes: IntCounter,
    /// Bytes received but not yet part of a batch.
    pub buffer_bytes: IntGauge,
    /// The bound of the bytes above.
    pub buffer_bytes_max: IntGauge,
    /// From accepted at the edge to received here, cookie by cookie.
    pub received_seconds: Latency,
    /// Streams open now.
    pub connected: IntGauge,
    /// Streams open now, by address.
    pub connected_by_address: IntGaugeVec,
    /// Streams that were opened.
    pub connections: IntCounter,
    /// Streams that broke the contract's rules.
    pub violations: IntCounter,
    /// Events that are unknown to this version.
    pub unknown_events: IntCounter,
    /// Streams of a producer that took turns with those of another of the same id.
    pub duplicate_producers: IntCounter,
    /// Epochs that ended without a goodbye.
    pub unknown_tails: IntCounter,
    /// Most cookies that can be missing of those epochs that have a bound.
    pub unknown_tail_cookies: IntCounter,
    /// Lives of producers that ended with nothing lost.
    pub lives_proved: IntCounter,
    /// Lives of which an exact number was lost.
    pub lives_lost: IntCounter,
    /// Lives of which not more than a known number was lost.
    pub lives_bounded: IntCounter,
    /// Lives of whose end nothing is known.
    pub lives_unknown: IntCounter,
    /// Cookies that a producer took with it at its end.
    pub lost_producer_ended: IntCounter,
    lost_queue_bound: IntCounter,
    lost_log_moved_on: IntCounter,
    lost_unspecified: IntCounter,
    /// What became of every cookie; shared with the sink.
    pub ledger: Ledger,
}

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
    /// Goodbyes of producers of which everything is durable.
    pub goodbyes: IntCounter,
    /// The newest durable cursor by producer.
    pub cursor_sequence: IntGaugeVec,
}

/// Letters for cookies that the store refused for ever.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// Letters in the file.
    pub written: IntCounter,
    /// Letters that could not be written.
    pub failed: IntCounter,
}

/// What maintenance counts.
#[derive(Clone, Debug)]
pub struct Maintenance {
    /// Whether the expiry window is open.
    pub expiry_open: IntGauge,
    /// Whether the compaction window is open.
    pub compaction_open: IntGauge,
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

impl Metrics {
    /// Registers everything.
    ///
    /// # Errors
    /// When a name is taken on this registry.
    pub fn register(registry: &Registry) -> Result<Self> {
        let build = IntGauge::with_opts(
            Opts::new("consumer_build_info", "Always 1; what runs here.")
                .const_label("version", env!("CARGO_PKG_VERSION")),
        )?;
        build.set(1);
        registry.register(Box::new(build))?;
        let names = Names(registry);
        let ledger = Ledger::new()?;
        registry.register(Box::new(ledger.clone()))?;
        Ok(Self {
            subscription: Subscription::register(&names, ledger.clone())?,
            sink: Sink::register(&names, ledger)?,
            maintenance: Maintenance::register(&names)?,
        })
    }
}

impl Subscription {
    fn register(names: &Names<'_>, ledger: Ledger) -> Result<Self> {
        let lost = names.counters(
            "lost_total",
            "Cookies a producer had and this consumer will not get, by reason.",
            "reason",
        )?;
        let lives = names.counters(
            "producer_lives_total",
            "Lives of producers that ended, by what this consumer knows to have lost of them, and of lives since that it did not see: proved (nothing), lost (exactly counted), bounded (not more than a known number), unknown.",
            "end",
        )?;
        Ok(Self {
            bytes: names.counter("received_bytes_total", "Bytes of messages received.")?,
            buffer_bytes: names.gauge(
                "buffer_bytes",
                "Bytes received but not yet part of a batch.",
            )?,
            buffer_bytes_max: names.gauge(
                "buffer_limit_bytes",
                "Bytes received but not yet part of a batch at which reading stops.",
            )?,
            received_seconds: Latency::register(
                names,
                "received_seconds",
                "Time from accepted at the edge to received here, cookie by cookie.",
            )?,
            connected: names.gauge("producers_connected", "Streams open now.")?,
            connected_by_address: names.gauges(
                "producer_connected",
                "1 while the stream from this address is open.",
                "address",
            )?,
            connections: names.counter("connections_total", "Streams that were opened.")?,
            violations: names.counter(
                "stream_violations_total",
                "Streams ended because they broke the rules of the contract, goodbyes with cookies missing included.",
            )?,
            unknown_events: names.counter(
                "unknown_events_total",
                "Events of a later version of the contract, skipped.",
            )?,
            duplicate_producers: names.counter(
                "duplicate_producer_ids_total",
                "Times that two producers with the same id were found to be streaming at once.",
            )?,
            unknown_tails: names.counter(
                "unknown_tail_total",
                "Lives of producers that ended in a way that leaves unknown how much was lost.",
            )?,
            unknown_tail_cookies: names.counter(
                "unknown_tail_cookies_total",
                "Most cookies that may have been lost at the ends of those lives that have a bound.",
            )?,
            lives_proved: lives.with_label_values(&["proved"]),
            lives_lost: lives.with_label_values(&["lost"]),
            lives_bounded: lives.with_label_values(&["bounded"]),
            lives_unknown: lives.with_label_values(&["unknown"]),
            lost_producer_ended: lost.with_label_values(&["producer_ended"]),
            lost_queue_bound: lost.with_label_values(&["queue_bound"]),
            lost_log_moved_on: lost.with_label_values(&["log_moved_on"]),
            lost_unspecified: lost.with_label_values(&["unspecified"]),
            ledger,
        })
    }

    /// Counts cookies that will never come.
    pub fn lost(&self, reason: GapReason, cookies: u64) {
        match reason {
            GapReason::QueueBound => self.lost_queue_bound.inc_by(cookies),
            GapReason::LogMovedOn => self.lost_log_moved_on.inc_by(cookies),
            GapReason::Unspecified => self.lost_unspecified.inc_by(cookies),
        }
    }
}

impl Sink {
    fn register(names: &Names<'_>, ledger: Ledger) -> Result<Self> {
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
            stored_seconds: Latency::register(
                names,
                "stored_seconds",
                "Time from accepted at the edge to durable in the store, cookie by cookie.",
            )?,
            store_errors: names.counter("store_errors_total", "Failed attempts to use the store.")?,
            store_up: names.gauge("store_up", "1 while the store works.")?,
            goodbyes: names.counter(
                "producer_goodbyes_total",
                "Producers that said goodbye and of which everything before that is stored, or was declared lost.",
            )?,
            cursor_sequence: names.gauges(
                "cursor_sequence",
                "The newest durable sequence, by producer id.",
                "producer",
            )?,
        })
    }
}

impl Sink {
    /// Ends the series of a producer that is gone.
    pub fn forget(&self, producer: &str) {
        if self
            .cursor_sequence
            .remove_label_values(&[producer])
            .is_err()
        {
            tracing::trace!(producer, "had no series");
        }
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

impl Maintenance {
    fn register(names: &Names<'_>) -> Result<Self> {
        Ok(Self {
            expiry_open: names.gauge("expiry_window_open", "1 while expiry may run.")?,
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

/// Finest where cookies arrive when all is well: after one to three times a chunk's age of 10 ms.
const SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// Registers metrics under this process's prefix.
struct Names<'a>(&'a Registry);

impl Names<'_> {
    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(format!("consumer_{name}"), help)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        let counter = IntCounter::with_opts(Self::opts(name, help))?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> Result<IntCounterVec> {
        let counters = IntCounterVec::new(Self::opts(name, help), &[label])?;
        self.0.register(Box::new(counters.clone()))?;
        Ok(counters)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        let gauge = IntGauge::with_opts(Self::opts(name, help))?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn gauges(&self, name: &str, help: &str, label: &str) -> Result<IntGaugeVec> {
        let gauges = IntGaugeVec::new(Self::opts(name, help), &[label])?;
        self.0.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts {
            common_opts: Self::opts(name, help),
            buckets: buckets.to_vec(),
        };
        let histogram = Histogram::with_opts(opts)?;
        self.0.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }
}

/// A gauge's value for a count that may pass what it can hold.
#[must_use]
pub fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::{Encoder, TextEncoder};

    use super::*;

    #[test]
    fn latency_counts_every_cookie_of_an_observation() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.sink.stored_seconds.observe([
            (Duration::from_millis(1), 3),
            (Duration::from_millis(120), 40),
            (Duration::from_secs(100), 2),
        ]);
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&registry.gather(), &mut text)
            .unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "consumer_stored_seconds_bucket{le=\"0.001\"} 3",
            "consumer_stored_seconds_bucket{le=\"0.1\"} 3",
            "consumer_stored_seconds_bucket{le=\"0.15\"} 43",
            "consumer_stored_seconds_bucket{le=\"60\"} 43",
            "consumer_stored_seconds_bucket{le=\"+Inf\"} 45",
            "consumer_stored_seconds_count 45",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
