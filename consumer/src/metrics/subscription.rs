//! What is counted of streams, from the connection to the buffer.

use prometheus::{IntCounter, IntGauge, Result};
use proto::v1::GapReason;
use runtime::metrics::{Latency, PeakGauge};

use super::Names;
use crate::ledger::Ledger;

/// What subscriptions count.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Bytes of messages received.
    pub bytes: IntCounter,
    /// Bytes received but not yet part of a batch.
    pub buffer_bytes: IntGauge,
    /// The greatest number of these since the scrape before the last.
    pub buffer_bytes_peak: PeakGauge,
    /// The bound of the bytes above.
    pub buffer_bytes_max: IntGauge,
    /// From accepted at the edge to received here, cookie by cookie.
    pub received_seconds: Latency,
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

impl Subscription {
    pub(super) fn register(names: &Names<'_>, ledger: Ledger) -> Result<Self> {
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
        let buffer_bytes = names.gauge(
            "buffer_bytes",
            "Bytes received but not yet part of a batch.",
        )?;
        Ok(Self {
            bytes: names.counter("received_bytes_total", "Bytes of messages received.")?,
            buffer_bytes_peak: PeakGauge::register(
                names.0,
                "consumer_buffer_bytes_max",
                "The greatest number of bytes received but not yet part of a batch since the scrape before the last.",
                buffer_bytes.clone(),
            )?,
            buffer_bytes,
            buffer_bytes_max: names.gauge(
                "buffer_limit_bytes",
                "Bytes received but not yet part of a batch at which reading stops.",
            )?,
            received_seconds: names.latency(
                "received_seconds",
                "Time from accepted at the edge to received here, cookie by cookie.",
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
