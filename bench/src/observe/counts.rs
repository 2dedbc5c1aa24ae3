//! What is read from the metrics of a producer and a consumer.

use super::CookieOutcomes;
use crate::scrape::{Buckets, Samples, names};

/// What a process counted; what the other kind of process counts is zero.
#[derive(Debug, Clone, Default)]
pub struct ProcessCounts {
    /// When a producer started, in seconds since the Unix epoch; 0 when it has not answered yet.
    pub started: u64,
    /// Cookies in a producer's log since its start.
    pub appended: u64,
    /// Cookies handed to streams, each once for each subscriber.
    pub delivered: u64,
    /// Bytes handed to streams.
    pub sent_bytes: u64,
    /// Cookies that streams have not taken yet, of all subscribers.
    pub lag: u64,
    /// What became of the cookies that a consumer received.
    pub outcomes: CookieOutcomes,
    /// Cookies that will not come.
    pub lost: u64,
    /// Epochs of producers that ended without a goodbye.
    pub uncertain_restarts: u64,
    /// Bytes received and not yet part of a batch.
    pub buffer_bytes: u64,
    /// Where reading stops.
    pub buffer_limit_bytes: u64,
    /// Accepted to received.
    pub received_seconds: Buckets,
    /// Accepted to stored.
    pub stored_seconds: Buckets,
    /// Time of a batch.
    pub flush_seconds: Buckets,
    /// Batches made durable.
    pub batches: u64,
    /// Cookies of all of these.
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

    /// The sum with what a `later` run counted; what is not a counter is the later one's.
    pub(super) fn plus(&self, later: &Self) -> Self {
        Self {
            appended: self.appended + later.appended,
            delivered: self.delivered + later.delivered,
            sent_bytes: self.sent_bytes + later.sent_bytes,
            outcomes: self.outcomes.with(&later.outcomes, |a, b| a + b),
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
