//! From the buffer into the store: two tasks, so that one batch is collected while the one before is written.
//!
//! The collector hands a batch over when it is old enough (the flush interval after its first cookie), large enough to
//! be worth it, or full, and the writer is idle. While the writer is busy the batch grows up to its bound; then
//! collecting stops, the buffer fills, and reading stops. There are never more than three batches: one collected, one
//! written, one committed.
//!
//! The writer writes one batch while the one before is made durable with its cursors: waiting for the disk in
//! between would cost a fifth of the throughput. What fails is repeated until the store has it, forever, and that is
//! said only when it begins and ends. Cursors are durable after the cookies of their batch, or not at all.
//!
//! Whether the store works is what the last attempt to write says: while a batch is being repeated nothing else
//! is asked, so only its success ends an outage. With nothing to write, the store checks from time to time whether
//! it could.
//!
//! The end of the buffer ends the collector after its last partial batch, and that ends the writer: nothing that
//! was received is left behind, unless it is a fast drain: one whose deadline is near.

mod collector;
mod pipeline;
mod store_caller;
mod writer;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{batch::Batch, suppression::Suppression};

pub use collector::Collector;
pub use pipeline::{Pipeline, StopTokens};
pub use writer::Writer;

/// Most bytes of chunks that one batch keeps: three batches and the buffer are what the sink takes of memory.
pub const BATCH_BYTES_MAX: usize = 16 << 20;

/// When a batch is handed over.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// How long after its first cookie, if the writer is idle.
    pub flush_interval: Duration,
    /// At how many distinct cookies it takes no more.
    pub cookies_max: usize,
    /// At how many bytes of chunks it takes no more.
    pub bytes_max: usize,
}

/// Makes the way from the collector to the writer, which holds one batch at most.
#[must_use]
pub fn batch_sender() -> (BatchSender, BatchReceiver) {
    let (sender, receiver) = mpsc::channel(1);
    let batch_sender = BatchSender {
        batches: sender,
        idle: Arc::new(Semaphore::new(1)),
    };
    (batch_sender, BatchReceiver(receiver))
}

/// The collector's end.
#[derive(Debug)]
pub struct BatchSender {
    batches: mpsc::Sender<(Batch, OwnedSemaphorePermit)>,
    /// Its one permit is out while a batch is being written.
    idle: Arc<Semaphore>,
}

/// The writer's end.
#[derive(Debug)]
pub struct BatchReceiver(mpsc::Receiver<(Batch, OwnedSemaphorePermit)>);

impl BatchSender {
    /// Waits until the writer has nothing to do.
    async fn idle(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.idle).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// Gives a batch to the idle writer.
    async fn give(&self, batch: Batch, idle: OwnedSemaphorePermit) -> Result<(), Failure> {
        let given = self.batches.send((batch, idle)).await;
        given.map_err(|_| Failure::Stopped)
    }
}

/// Why the writer gave up.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store, or what is before it, will never work again in this process.
    #[error("the store broke: {0}")]
    Broken(String),
    /// The writer was told to stop at once.
    #[error("stopped while the store was not reachable")]
    Stopped,
}

fn lock(suppression: &Mutex<Suppression>) -> MutexGuard<'_, Suppression> {
    suppression.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
