//! Moves cookies from the buffer into the store, with two tasks: one batch is collected while another is written.
//!
//! The collector passes a batch to the writer when the writer is idle. The batch must be full, large enough to be efficient, or
//! old enough: its age is at least the flush interval, counted from its first cookie. While the writer is busy, the batch grows
//! up to its limit. Then collecting stops, the buffer fills, and reading stops. There are at most three batches: one being
//! collected, one being written, and one being committed.
//!
//! The writer writes a batch while it commits the previous one with its cursors: waiting for the disk in between would cost a
//! fifth of the throughput. Failed operations are repeated until they succeed; the log shows the start and end of an outage.
//! Cursors become durable after the cookies of their batch, or not at all.
//!
//! The last write attempt determines whether the store is up: an outage ends only with a successful write. When there is
//! nothing to write, the writer pings the store periodically.
//!
//! After the buffer is closed, the collector passes on its last batch and ends, and then the writer ends. All received cookies
//! are stored, except in a fast drain, which skips the rest of the buffer because its deadline is near.

mod collector;
mod pipeline;
mod store_caller;
mod writer;

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::batch::Batch;

use collector::{BatchLimits, Collector};
pub use pipeline::{Pipeline, StopTokens};
use writer::Writer;

/// Maximum bytes of chunks in a batch. The sink needs memory for three batches and the buffer.
pub const BATCH_BYTES_MAX: usize = 16 << 20;

/// Creates the channel from the collector to the writer, with a capacity of one batch.
fn batch_channel() -> (BatchSender, BatchReceiver) {
    let (sender, receiver) = mpsc::channel(1);
    let sender = BatchSender {
        batches: sender,
        idle: Arc::new(Semaphore::new(1)),
    };
    (sender, receiver)
}

/// The sending end, for the collector.
#[derive(Debug)]
struct BatchSender {
    batches: mpsc::Sender<(Batch, OwnedSemaphorePermit)>,
    /// One permit, which the batch being written holds.
    idle: Arc<Semaphore>,
}

/// The receiving end, for the writer.
type BatchReceiver = mpsc::Receiver<(Batch, OwnedSemaphorePermit)>;

impl BatchSender {
    /// Waits until the writer is idle.
    async fn wait_idle(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.idle).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// Sends a batch to the idle writer.
    async fn send(&self, batch: Batch, idle: OwnedSemaphorePermit) -> Result<(), Failure> {
        let sent = self.batches.send((batch, idle)).await;
        sent.map_err(|_| Failure::Stopped)
    }
}

/// Why the sink ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store failed permanently in this process.
    #[error("the store failed permanently: {0}")]
    Broken(String),
    /// The process stopped without waiting for the store.
    #[error("the sink stopped while the store was unavailable")]
    Stopped,
}

#[cfg(test)]
mod tests;
