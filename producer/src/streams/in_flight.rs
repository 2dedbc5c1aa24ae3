//! In-flight bytes: what streams have taken out of the log and their connections have not written yet. Counted for each
//! stream and in total, and bounded by one budget for all streams (`--in-flight-bytes`).
//!
//! Bytes are in flight until HTTP/2 has written them to the connection or has dropped them. A client that stops reading
//! keeps them in memory indefinitely, even after the log has moved on. When all streams together exceed the
//! budget, the worst are cut off: `cut_off.rs` decides which.
//!
//! Each stream is charged in full, although chunks are shared with the log and with other streams: the total is an
//! upper bound of the memory, and telling shared bytes apart would cost more than it is worth.
//!
//! Cost: three relaxed atomic operations for each chunk that is handed out, and one reading of the clock when it is
//! released. While the total exceeds the budget, each chunk also costs a lock and a walk over the streams that were cut
//! off; all others are walked only if they exceed the budget by themselves.

mod cut_off;

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicU64, Ordering},
};

use metric_defs::producer;
use prometheus::IntGauge;
use runtime::metrics::Registry;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::call::Call;
use crate::log_gate::LogGate;

/// What the streams of one queue have in flight, and how often they were cut off for it.
#[derive(Debug)]
pub struct QueueInFlight {
    subscriber: String,
    call: Call,
    bytes: AtomicU64,
    cuts: AtomicU64,
}

impl QueueInFlight {
    /// Nothing in flight yet for the queue of that name.
    #[must_use]
    pub fn new(call: Call, subscriber: &str) -> Self {
        Self {
            subscriber: subscriber.to_owned(),
            call,
            bytes: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
        }
    }

    /// The name and the call of the queue, for the log.
    #[must_use]
    pub(crate) fn name(&self) -> (&str, &'static str) {
        (&self.subscriber, self.call.label())
    }

    /// Bytes handed to its streams that their connections have not released.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How often one of its streams was cut off because all streams together exceeded the budget.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

/// The budget of in-flight bytes for all streams of one producer; clones share it.
#[derive(Debug, Clone)]
pub struct StreamBudget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: IntGauge,
    bytes_max: u64,
    began: Instant,
    streams: Mutex<OpenStreams>,
}

#[derive(Debug)]
struct OpenStreams {
    all: Vec<Weak<InFlight>>,
    /// Those that were cut off, and may still hold bytes.
    cut: Vec<Weak<InFlight>>,
    log_gate: LogGate,
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
            shared: Arc::new(Shared {
                bytes,
                bytes_max,
                began: Instant::now(),
                streams: Mutex::new(OpenStreams {
                    all: Vec::new(),
                    cut: Vec::new(),
                    log_gate: LogGate::new(cut_off::LINES_MAX, cut_off::LINES_INTERVAL),
                }),
            }),
        })
    }

    /// Bytes that all streams have in flight.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.total()
    }

    /// Counts for a new stream of `queue`.
    pub(crate) fn open(&self, queue: &Arc<QueueInFlight>) -> Arc<InFlight> {
        let stream = Arc::new(InFlight {
            shared: Arc::clone(&self.shared),
            queue: Arc::clone(queue),
            bytes: AtomicU64::new(0),
            progress_millis: AtomicU64::new(self.shared.millis()),
            cut: CancellationToken::new(),
            released: Notify::new(),
        });
        let mut streams = self.shared.streams();
        streams.all.retain(|stream| stream.strong_count() > 0);
        streams.all.push(Arc::downgrade(&stream));
        stream
    }
}

/// What one stream has in flight.
#[derive(Debug)]
pub struct InFlight {
    shared: Arc<Shared>,
    queue: Arc<QueueInFlight>,
    bytes: AtomicU64,
    /// When it last released something, or began to hold something.
    progress_millis: AtomicU64,
    cut: CancellationToken,
    released: Notify,
}

impl InFlight {
    /// Bytes in flight.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts `bytes` until the returned [`Charge`] is dropped; cuts off the worst streams when the budget is exceeded.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        let bytes = bytes as u64;
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.note_progress();
        }
        self.queue.bytes.fetch_add(bytes, Ordering::Relaxed);
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
    #[must_use]
    pub fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    /// Waits until nothing is in flight any more; for a stream that is over.
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
        // First, so that a stream never seems to hold less than its part of the total, which others would pay for.
        stream.shared.bytes.sub(signed(self.bytes));
        stream.queue.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let rest = stream.bytes.fetch_sub(self.bytes, Ordering::Relaxed) - self.bytes;
        stream.note_progress();
        if rest == 0 {
            stream.released.notify_one();
        }
    }
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, OpenStreams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn total(&self) -> u64 {
        u64::try_from(self.bytes.get()).unwrap_or(0)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).expect("a message is shorter than 2^63 bytes")
}

#[cfg(test)]
mod tests;
