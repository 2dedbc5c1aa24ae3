//! Disconnects the slowest streams when all streams together exceed the budget of in-flight bytes.
//!
//! The order is: first stalled streams, which have released nothing for `STALLED_AFTER`; then streams with the most
//! bytes in flight. Among streams that differ by less than `EQUAL_BYTES`, the longest stalled one comes first. A
//! disconnected stream ends with `RESOURCE_EXHAUSTED`. Its subscriber can reconnect and resume.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{BudgetShared, InFlight};

/// A stream that has released nothing for this long counts as stalled.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Streams whose bytes differ by less than this count as equal: one chunk of the default size.
const EQUAL_BYTES: u64 = 64 * 1024;

/// Maximum number of disconnected streams that are logged per interval.
pub(super) const LINES_MAX: u32 = 50;
pub(super) const LINES_INTERVAL: Duration = Duration::from_secs(10);

impl InFlight {
    /// Rank for disconnecting, the highest first; `None` without bytes in flight.
    fn rank(&self, now: u64) -> Option<(bool, u64, u64)> {
        let bytes = self.bytes();
        let stalled_for = now.saturating_sub(self.progress_millis.load(Ordering::Relaxed));
        let is_stalled = u128::from(stalled_for) >= STALLED_AFTER.as_millis();
        (bytes > 0).then_some((is_stalled, bytes / EQUAL_BYTES, stalled_for))
    }
}

impl BudgetShared {
    /// Disconnects streams until the others are within the budget; `now` is in milliseconds since the start.
    pub(super) fn enforce(&self, bytes_max: u64, now: u64) {
        let mut streams = self.streams.lock();
        streams
            .disconnected
            .retain(|stream| stream.strong_count() > 0);
        let disconnected = streams.disconnected.iter().filter_map(Weak::upgrade);
        let releasing: u64 = disconnected.map(|stream| stream.bytes()).sum();
        let mut in_flight = self.total().saturating_sub(releasing);
        if in_flight <= bytes_max {
            return;
        }
        let rest = streams.all.iter().filter_map(Weak::upgrade);
        let mut rest: Vec<_> = rest
            .filter(|stream| !stream.disconnect.is_cancelled())
            .filter_map(|stream| stream.rank(now).map(|rank| (rank, stream)))
            .collect();
        rest.sort_unstable_by_key(|&(rank, _)| rank);
        while in_flight > bytes_max {
            let Some(((_, _, stalled_millis), slowest)) = rest.pop() else {
                return;
            };
            let bytes = slowest.bytes();
            if let Some(suppressed) = streams.log_limit.admit(Instant::now()) {
                let (subscriber, call) = slowest.subscriber.name();
                tracing::warn!(
                    subscriber,
                    call,
                    in_flight_bytes = bytes,
                    stalled_millis,
                    total_in_flight_bytes = in_flight,
                    in_flight_bytes_max = bytes_max,
                    suppressed,
                    "disconnected slow subscriber: too many bytes in flight"
                );
            }
            slowest
                .subscriber
                .disconnects
                .fetch_add(1, Ordering::Relaxed);
            slowest.disconnect.cancel();
            streams.disconnected.push(Arc::downgrade(&slowest));
            in_flight = in_flight.saturating_sub(bytes);
        }
    }
}
