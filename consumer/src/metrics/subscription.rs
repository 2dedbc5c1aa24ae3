//! What is counted of streams, from the connection to the buffer.

use figures::consumer;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Result};
use proto::v1::GapReason;
use runtime::metrics::{Latency, PeakGauge, Registry};

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
    /// Restarts of producers with nothing lost.
    pub restarts_proved: IntCounter,
    /// Restarts with which an exact number was lost.
    pub restarts_lost: IntCounter,
    /// Restarts with which not more than a known number was lost.
    pub restarts_bounded: IntCounter,
    /// Restarts of which nothing is known.
    pub restarts_unknown: IntCounter,
    /// Cookies that a producer took with it at its end.
    pub lost_producer_ended: IntCounter,
    lost_queue_bound: IntCounter,
    lost_log_moved_on: IntCounter,
    lost_unspecified: IntCounter,
    /// Cookies that will never come, by reason.
    pub lost: IntCounterVec,
    /// What became of every cookie; shared with the sink.
    pub ledger: Ledger,
}

impl Subscription {
    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        let lost: IntCounterVec = registry.add(consumer::LOST)?;
        let restarts: IntCounterVec = registry.add(consumer::PRODUCER_RESTARTS)?;
        let buffer_bytes: IntGauge = registry.add(consumer::BUFFER_BYTES)?;
        let (peak, of) = (consumer::BUFFER_BYTES_MAX, buffer_bytes.clone());
        Ok(Self {
            bytes: registry.add(consumer::RECEIVED_BYTES)?,
            buffer_bytes_peak: PeakGauge::register(registry, peak, of)?,
            buffer_bytes,
            buffer_bytes_max: registry.add(consumer::BUFFER_LIMIT_BYTES)?,
            received_seconds: registry.add(consumer::RECEIVED_SECONDS)?,
            violations: registry.add(consumer::STREAM_VIOLATIONS)?,
            unknown_events: registry.add(consumer::UNKNOWN_EVENTS)?,
            duplicate_producers: registry.add(consumer::DUPLICATE_PRODUCER_IDS)?,
            unknown_tails: registry.add(consumer::UNKNOWN_TAILS)?,
            unknown_tail_cookies: registry.add(consumer::UNKNOWN_TAIL_COOKIES)?,
            restarts_proved: restarts.with_label_values(&["proved"]),
            restarts_lost: restarts.with_label_values(&["lost"]),
            restarts_bounded: restarts.with_label_values(&["bounded"]),
            restarts_unknown: restarts.with_label_values(&["unknown"]),
            lost_producer_ended: lost.with_label_values(&["producer_ended"]),
            lost_queue_bound: lost.with_label_values(&["queue_bound"]),
            lost_log_moved_on: lost.with_label_values(&["log_moved_on"]),
            lost_unspecified: lost.with_label_values(&["unspecified"]),
            lost,
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
