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
mod store_caller;
mod write_rate;
mod writer;

use std::{collections::BTreeSet, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use proto::units::DspId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    batch::Batch,
    clock::{self, ClockJumps},
    config::Config,
    dead_letters::DeadLetters,
    deletions::Deletions,
    dsp_slots::DspSlots,
    health::Health,
    metrics::Metrics,
    recovery::Intake,
    retry_queue::{Retrier, RetryQueue},
    store::Store,
    subscription::buffer::{self, BufferWriter},
    suppression::Suppression,
};
use collector::{BatchLimits, Collector};
use store_caller::StoreCaller;
use write_rate::WriteRate;
use writer::Writer;

/// Maximum bytes of chunks in a batch. The sink needs memory for three batches and the buffer.
pub const BATCH_BYTES_MAX: usize = 16 << 20;

/// Maximum bytes of the dead-letter file and its rotated copy.
const DEAD_LETTER_BYTES_MAX: usize = 16 << 20;

/// Tokens that end a sink before its buffer ends.
#[derive(Debug, Clone, Default)]
pub struct StopTokens {
    /// Cancelled to skip the rest of the buffer.
    pub fast_drain: CancellationToken,
    /// Cancelled to stop without waiting for the store.
    pub immediate: CancellationToken,
    /// Cancelled to stop retries.
    pub retrier: CancellationToken,
}

/// A sink whose three tasks must run concurrently. It ends when all writers of the buffer are dropped.
pub struct Sink {
    /// Input of the collector.
    pub buffer: BufferWriter,
    /// Runs the collector.
    pub collecting: BoxFuture<'static, Result<(), Failure>>,
    /// Runs the writer.
    pub writing: BoxFuture<'static, Result<(), Failure>>,
    /// Runs the retries of queued cookies.
    pub retrying: BoxFuture<'static, ()>,
    /// Number of records copied from another node that are durable.
    pub copied: watch::Receiver<u64>,
    /// Whether the store had neither cookies nor cursors.
    pub is_new: bool,
}

impl Sink {
    /// Waits for the store, loads its cursors into the table of producers, and builds a sink.
    ///
    /// # Errors
    /// When the store failed permanently, or a token is cancelled.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another part of the process"
    )]
    pub async fn open(
        config: &Config,
        store: &Store,
        health: Arc<Health>,
        rejected_dsps: watch::Receiver<BTreeSet<DspId>>,
        deletions: Deletions,
        metrics: &Metrics,
        recovery: Intake,
        stops: StopTokens,
    ) -> Result<Self, Failure> {
        let (storage, retention) = (&config.args.storage, &config.args.retention);
        let (buffer, received) = buffer::buffer(storage.buffer_bytes, &metrics.subscription);
        let limits = BatchLimits {
            flush_interval: storage.flush_interval,
            cookies_max: storage.batch_cookies,
            bytes_max: BATCH_BYTES_MAX,
        };
        let ttls = config.ttls.clone();
        let suppression = Suppression::new(
            retention.refresh_interval,
            retention.refresh_bytes,
            ttls.clone(),
        );
        let suppression = Arc::new(Mutex::new(suppression));
        let (batch_sender, batches) = batch_channel();
        let dead_letters = DeadLetters::new(
            storage.dead_letters.clone(),
            DEAD_LETTER_BYTES_MAX,
            metrics.sink.dead_letters.clone(),
        );
        let retry_queue = RetryQueue::new(storage.dsps(), deletions.clone(), metrics.sink.clone());
        let retrier = store.backlog.clone().map(|backlog| Retrier {
            retry_queue: retry_queue.clone(),
            backlog,
            health: Arc::clone(&health),
            dead_letters: dead_letters.clone(),
            rejected_dsps: rejected_dsps.clone(),
            ttls: ttls.clone(),
        });
        let write_rate = WriteRate::default();
        let mut collector = Collector {
            limits,
            write_rate: write_rate.clone(),
            suppression: Arc::clone(&suppression),
            metrics: metrics.sink.clone(),
            fast_drain: stops.fast_drain,
            clock: ClockJumps::new(clock::now(), Instant::now()),
            slots: DspSlots::new(storage.dsps(), storage.unlisted_dsps_max),
            ttls,
            deletions,
            producers: health.producers().clone(),
            rejected_dsps,
            recovery,
        };
        let sink = metrics.sink.clone();
        let (copied_sender, copied) = watch::channel(0);
        let mut writer = Writer {
            caller: StoreCaller::new(
                store.cookies.hang_timeout(),
                Arc::clone(&health),
                sink,
                stops.immediate,
            ),
            cookies: Arc::clone(&store.cookies),
            backlog: store.backlog.clone(),
            suppression,
            dead_letters,
            retry_queue,
            write_rate,
            copied: copied_sender,
        };
        let loaded = writer.load().await?;
        let is_new = loaded.cursors.is_empty() && loaded.slots.is_empty();
        health.producers().load(loaded.cursors);
        collector.load(&loaded.slots);
        Ok(Self {
            buffer,
            collecting: collector.run(received, batch_sender).boxed(),
            writing: writer.run(batches).boxed(),
            retrying: match retrier {
                Some(retrier) => retrier.run(stops.retrier).boxed(),
                None => stops.retrier.cancelled_owned().boxed(),
            },
            copied,
            is_new,
        })
    }
}

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
