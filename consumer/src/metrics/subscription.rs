//! What is counted of streams, from the connection to the buffer.

use metric_defs::consumer;
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
    pub uncertain_restarts: IntCounter,
    /// Most cookies that can be missing of those epochs that have a bound.
    pub uncertain_loss_cookies: IntCounter,
    /// Restarts of producers, by what is known to have been lost by them.
    pub restarts: IntCounterVec,
    /// Cookies that will never come, by reason.
    pub lost: IntCounterVec,
    /// What became of every cookie; shared with the sink.
    pub ledger: Ledger,
}

impl Subscription {
    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        let lost: IntCounterVec = registry.add(consumer::LOST)?;
        let restarts: IntCounterVec = registry.add(consumer::PRODUCER_RESTARTS)?;
        // Each is there from the start, with 0.
        for reason in ["producer_ended", "lag_limit", "evicted", "unspecified"] {
            lost.with_label_values(&[reason]);
        }
        for loss in ["none", "exact", "bounded", "unknown"] {
            restarts.with_label_values(&[loss]);
        }
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
            uncertain_restarts: registry.add(consumer::UNCERTAIN_RESTARTS)?,
            uncertain_loss_cookies: registry.add(consumer::UNCERTAIN_LOSS_COOKIES)?,
            restarts,
            lost,
            ledger,
        })
    }

    /// Counts cookies of a gap.
    pub fn lost(&self, reason: GapReason, cookies: u64) {
        let reason = match reason {
            GapReason::LagLimit => "lag_limit",
            GapReason::Evicted => "evicted",
            GapReason::Unspecified => "unspecified",
        };
        self.lost.with_label_values(&[reason]).inc_by(cookies);
    }
}
