//! Metrics of streams, from the connection to the buffer.

use metric_defs::consumer;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Result};
use proto::v1::GapReason;
use runtime::metrics::{Latency, PeakGauge, Registry};

use crate::ledger::Ledger;

/// Metrics of subscriptions.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Bytes of messages received.
    pub bytes: IntCounter,
    /// Bytes received but not yet part of a batch.
    pub buffer_bytes: IntGauge,
    /// Maximum of `buffer_bytes` since the second-to-last scrape.
    pub buffer_bytes_peak: PeakGauge,
    /// Size of the buffer.
    pub buffer_bytes_max: IntGauge,
    /// Time from acceptance, or release if later, to receipt, per cookie.
    pub received_seconds: Latency,
    /// Protocol violations.
    pub violations: IntCounter,
    /// Events unknown to this version.
    pub unknown_events: IntCounter,
    /// Messages that revealed a duplicate producer id.
    pub duplicate_producers: IntCounter,
    /// Producer restarts whose exact loss is unknown.
    pub uncertain_restarts: IntCounter,
    /// Sum of the upper bounds of cookies lost at restarts.
    pub uncertain_loss_cookies: IntCounter,
    /// Producer restarts by loss.
    pub restarts: IntCounterVec,
    /// Lost cookies by reason.
    pub lost: IntCounterVec,
    /// The ledger, shared with the sink.
    pub ledger: Ledger,
}

impl Subscription {
    pub(super) fn register(registry: &Registry, ledger: Ledger) -> Result<Self> {
        let lost: IntCounterVec = registry.add(consumer::LOST)?;
        let restarts: IntCounterVec = registry.add(consumer::PRODUCER_RESTARTS)?;
        // All series exist from the start.
        for reason in ["producer_ended", "lag_limit", "evicted", "unspecified"] {
            lost.with_label_values(&[reason]);
        }
        for loss in ["none", "exact", "bounded", "unknown"] {
            restarts.with_label_values(&[loss]);
        }
        let buffer_bytes: IntGauge = registry.add(consumer::BUFFER_BYTES)?;
        let (peak, current) = (consumer::BUFFER_BYTES_MAX, buffer_bytes.clone());
        Ok(Self {
            bytes: registry.add(consumer::RECEIVED_BYTES)?,
            buffer_bytes_peak: PeakGauge::register(registry, peak, current)?,
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

    /// Counts the cookies that were not recovered, by reason.
    pub fn add_unrecovered(&self, lost: impl IntoIterator<Item = (&'static str, u64)>) {
        for (reason, lost) in lost {
            self.lost.with_label_values(&[reason]).inc_by(lost);
        }
    }

    /// Counts cookies of a gap.
    pub fn add_lost(&self, reason: GapReason, cookies: u64) {
        let reason = match reason {
            GapReason::LagLimit => "lag_limit",
            GapReason::Evicted => "evicted",
            GapReason::Unspecified => "unspecified",
        };
        self.lost.with_label_values(&[reason]).inc_by(cookies);
    }
}
