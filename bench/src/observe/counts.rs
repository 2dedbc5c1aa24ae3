//! Counts read from the metrics of producers and consumers.

use super::outcomes::CookieOutcomes;
use crate::scrape::{Buckets, Samples, names};

/// Counts of a producer or a consumer; those of the other role are zero.
#[derive(Debug, Clone, Default)]
pub struct ProcessCounts {
    /// Start of a producer in seconds since the Unix epoch; 0 before its first response.
    pub started: u64,
    /// Cookies appended to the log of a producer.
    pub appended: u64,
    /// Cookies passed to streams, over all subscribers.
    pub delivered: u64,
    /// Bytes passed to streams.
    pub sent_bytes: u64,
    /// Cookies not yet passed to streams, over all subscribers.
    pub lag: u64,
    /// Outcomes of the cookies received by a consumer.
    pub outcomes: CookieOutcomes,
    /// Lost cookies.
    pub lost: u64,
    /// Producer restarts with uncertain losses.
    pub uncertain_restarts: u64,
    /// Size of the receive buffer of a consumer.
    pub buffer_bytes: u64,
    /// Maximum size of the receive buffer.
    pub buffer_limit_bytes: u64,
    /// Latency from acceptance to receipt.
    pub received_seconds: Buckets,
    /// Latency from acceptance to durability.
    pub stored_seconds: Buckets,
    /// Time to make a batch durable.
    pub flush_seconds: Buckets,
    /// Durable batches.
    pub batches: u64,
    /// Cookies in durable batches.
    pub batched: u64,
}

impl ProcessCounts {
    pub(super) fn read(samples: &Samples) -> Self {
        let count = |name| samples.count(name, &[]);
        Self {
            started: count(names::STARTED),
            appended: count(names::APPENDED),
            delivered: count(names::DELIVERED),
            sent_bytes: count(names::SENT_BYTES),
            lag: count(names::LAG),
            outcomes: CookieOutcomes::read(samples),
            lost: count(names::LOST),
            uncertain_restarts: count(names::UNCERTAIN_RESTARTS),
            buffer_bytes: count(names::BUFFER_BYTES),
            buffer_limit_bytes: count(names::BUFFER_LIMIT_BYTES),
            received_seconds: samples.histogram(names::RECEIVED_SECONDS),
            stored_seconds: samples.histogram(names::STORED_SECONDS),
            flush_seconds: samples.histogram(names::FLUSH_SECONDS),
            batches: samples.count(format!("{}_count", names::BATCH_COOKIES), &[]),
            batched: samples.count(format!("{}_sum", names::BATCH_COOKIES), &[]),
        }
    }

    /// Adds the counters of a `later` run, and takes its gauges.
    pub(super) fn plus(&self, later: &Self) -> Self {
        Self {
            appended: self.appended + later.appended,
            delivered: self.delivered + later.delivered,
            sent_bytes: self.sent_bytes + later.sent_bytes,
            outcomes: self.outcomes.combine(&later.outcomes, |a, b| a + b),
            lost: self.lost + later.lost,
            uncertain_restarts: self.uncertain_restarts + later.uncertain_restarts,
            received_seconds: self.received_seconds.plus(&later.received_seconds),
            stored_seconds: self.stored_seconds.plus(&later.stored_seconds),
            flush_seconds: self.flush_seconds.plus(&later.flush_seconds),
            batches: self.batches + later.batches,
            batched: self.batched + later.batched,
            ..later.clone()
        }
    }
}
