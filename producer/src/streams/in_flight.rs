//! In-flight bytes: taken from the log by streams, but not yet written by their connections. They are counted per
//! stream and in total, and bounded by one budget for all streams (`--in-flight-bytes`).
//!
//! Bytes are in flight until HTTP/2 has written or dropped them. A client that stops reading keeps them in memory even after
//! the log has evicted them. When the total exceeds the budget, stalled streams are disconnected first, then those with
//! the most bytes in flight (`disconnect.rs`).
//!
//! Each stream is charged in full, although chunks are shared with the log and other streams. The total is therefore an
//! upper bound; an exact count would cost too much.
//!
//! A delivered chunk costs three relaxed atomic operations, and one clock reading on release. While the total exceeds
//! the budget, each delivery also takes a lock and iterates over the disconnected streams. It iterates over the other
//! streams only if their bytes alone exceed the budget.

mod disconnect;

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use metric_defs::producer;
use parking_lot::Mutex;
use prometheus::IntGauge;
use runtime::metrics::Registry;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::call::Call;
use crate::interval_limit::IntervalLimit;

/// In-flight bytes of one subscriber's streams, and how often they were disconnected.
#[derive(Debug)]
pub struct SubscriberInFlight {
    name: String,
    call: Call,
    bytes: AtomicU64,
    disconnects: AtomicU64,
}

impl SubscriberInFlight {
    /// A subscriber without bytes in flight.
    pub fn new(call: Call, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            call,
            bytes: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
        }
    }

    /// Name and call of the subscriber, for log messages.
    pub(crate) fn name(&self) -> (&str, &'static str) {
        (&self.name, self.call.label())
    }

    /// Bytes in flight on its streams.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How often one of its streams was disconnected because the budget was exceeded.
    pub fn disconnects(&self) -> u64 {
        self.disconnects.load(Ordering::Relaxed)
    }
}

/// Budget of in-flight bytes for all streams of a producer; clones share it.
#[derive(Debug, Clone)]
pub struct StreamBudget {
    shared: Arc<BudgetShared>,
}

#[derive(Debug)]
struct BudgetShared {
    bytes: IntGauge,
    bytes_max: u64,
    started: Instant,
    streams: Mutex<StreamTable>,
}

#[derive(Debug)]
struct StreamTable {
    all: Vec<Weak<InFlight>>,
    /// Disconnected streams, which may still have bytes in flight.
    disconnected: Vec<Weak<InFlight>>,
    log_limit: IntervalLimit,
}

impl StreamBudget {
    /// A budget of `bytes_max`; registers `producer_in_flight_bytes` and its limit.
    ///
    /// # Errors
    /// When a metric of that name is registered already.
    pub fn register(registry: &Registry, bytes_max: u64) -> prometheus::Result<Self> {
        let bytes = registry.add(producer::IN_FLIGHT_BYTES)?;
        let limit: IntGauge = registry.add(producer::IN_FLIGHT_LIMIT_BYTES)?;
        limit.set(i64::try_from(bytes_max).unwrap_or(i64::MAX));
        Ok(Self {
            shared: Arc::new(BudgetShared {
                bytes,
                bytes_max,
                started: Instant::now(),
                streams: Mutex::new(StreamTable {
                    all: Vec::new(),
                    disconnected: Vec::new(),
                    log_limit: IntervalLimit::new(
                        disconnect::LINES_MAX,
                        disconnect::LINES_INTERVAL,
                    ),
                }),
            }),
        })
    }

    /// Bytes in flight on all streams.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.total()
    }

    /// Adds a stream of `subscriber`.
    pub(crate) fn open(&self, subscriber: &Arc<SubscriberInFlight>) -> Arc<InFlight> {
        let stream = Arc::new(InFlight {
            shared: Arc::clone(&self.shared),
            subscriber: Arc::clone(subscriber),
            bytes: AtomicU64::new(0),
            progress_millis: AtomicU64::new(self.shared.millis()),
            disconnect: CancellationToken::new(),
            released: Notify::new(),
        });
        let mut streams = self.shared.streams.lock();
        streams.all.retain(|stream| stream.strong_count() > 0);
        streams.all.push(Arc::downgrade(&stream));
        stream
    }
}

/// In-flight bytes of one stream.
#[derive(Debug)]
pub struct InFlight {
    shared: Arc<BudgetShared>,
    subscriber: Arc<SubscriberInFlight>,
    bytes: AtomicU64,
    /// When it last released bytes, or first had bytes in flight.
    progress_millis: AtomicU64,
    disconnect: CancellationToken,
    released: Notify,
}

impl InFlight {
    /// Bytes in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` until the returned [`Charge`] is dropped; disconnects the slowest streams if the budget is exceeded.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let bytes = bytes as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.note_progress();
        }
        self.subscriber.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shared.bytes.add(signed(bytes));
        if self.shared.total() > self.shared.bytes_max {
            self.shared
                .enforce(self.shared.bytes_max, self.shared.millis());
        }
        Charge {
            stream: Arc::clone(self),
            bytes,
        }
    }

    /// Cancelled when the stream must end because the budget is exceeded.
    pub fn disconnect(&self) -> &CancellationToken {
        &self.disconnect
    }

    /// Waits until no bytes are in flight; for a stream that has ended.
    pub async fn released(&self) {
        while self.bytes() > 0 {
            self.released.notified().await;
        }
    }

    fn note_progress(&self) {
        let now = self.shared.millis();
        self.progress_millis.store(now, Ordering::Relaxed);
    }
}

/// Bytes charged to a stream; dropping it releases them.
#[derive(Debug)]
pub struct Charge {
    stream: Arc<InFlight>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let stream = &self.stream;
        // The total is reduced first. Otherwise it could exceed the sum of the streams, and the wrong stream would be
        // disconnected.
        stream.shared.bytes.sub(signed(self.bytes));
        stream
            .subscriber
            .bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
        let rest = stream.bytes.fetch_sub(self.bytes, Ordering::Relaxed) - self.bytes;
        stream.note_progress();
        if rest == 0 {
            stream.released.notify_one();
        }
    }
}

impl BudgetShared {
    fn total(&self) -> u64 {
        u64::try_from(self.bytes.get()).unwrap_or(0)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).expect("a message is shorter than 2^63 bytes")
}

#[cfg(test)]
mod tests;
