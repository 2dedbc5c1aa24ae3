//! Builds a sink from the settings: buffer → collector → writer.

use std::{collections::BTreeSet, fmt, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use parking_lot::Mutex;
use runtime::unix_micros;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    BATCH_BYTES_MAX, BatchLimits, Collector, Failure, Writer, batch_channel,
    store_caller::StoreCaller,
};
use crate::{
    clock::ClockJumps,
    config::Config,
    dead_letters::DeadLetters,
    deletions::Deletions,
    dsp_slots::DspSlots,
    health::Health,
    metrics::Metrics,
    retry_queue::{Retrier, RetryQueue},
    store::Store,
    subscription::buffer::{self, BufferWriter},
    suppression::Suppression,
};

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
pub struct Pipeline {
    /// Input of the collector.
    pub buffer: BufferWriter,
    /// Runs the collector.
    pub collecting: BoxFuture<'static, Result<(), Failure>>,
    /// Runs the writer.
    pub writing: BoxFuture<'static, Result<(), Failure>>,
    /// Runs the retries of queued cookies.
    pub retrying: BoxFuture<'static, ()>,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Waits for the store, loads its cursors into the table of producers, and builds a sink.
    ///
    /// # Errors
    /// When the store failed permanently, or a token is cancelled.
    pub async fn open(
        config: &Config,
        store: Arc<dyn Store>,
        health: Arc<Health>,
        rejected_dsps: watch::Receiver<BTreeSet<u32>>,
        deletions: Deletions,
        metrics: &Metrics,
        stops: StopTokens,
    ) -> Result<Self, Failure> {
        let (buffer, received) = buffer::buffer(config.storage.buffer_bytes, &metrics.subscription);
        let limits = BatchLimits {
            flush_interval: config.storage.flush_interval,
            cookies_max: config.storage.batch_cookies,
            bytes_max: BATCH_BYTES_MAX,
        };
        let ttls = config.ttls.clone();
        let suppression = Suppression::new(
            config.retention.refresh_interval,
            config.retention.refresh_bytes,
            ttls.clone(),
        );
        let suppression = Arc::new(Mutex::new(suppression));
        let (batch_sender, batches) = batch_channel();
        let dead_letters = DeadLetters::new(
            config.storage.dead_letters.clone(),
            config.storage.dead_letter_bytes,
            metrics.sink.dead_letters.clone(),
        );
        let retry_queue = RetryQueue::new(
            config.storage.dsps(),
            deletions.clone(),
            metrics.retry_queue.clone(),
        );
        let retrier = Retrier {
            retry_queue: retry_queue.clone(),
            store: Arc::clone(&store),
            health: Arc::clone(&health),
            dead_letters: dead_letters.clone(),
            rejected_dsps: rejected_dsps.clone(),
            ttls: ttls.clone(),
        };
        let mut collector = Collector {
            limits,
            suppression: Arc::clone(&suppression),
            metrics: metrics.sink.clone(),
            fast_drain: stops.fast_drain,
            clock: ClockJumps::new(unix_micros(), Instant::now()),
            slots: DspSlots::new(config.storage.dsps(), config.storage.unlisted_dsps_max),
            ttls,
            deletions,
            producers: health.producers().clone(),
            rejected_dsps,
        };
        let sink = metrics.sink.clone();
        let mut writer = Writer {
            caller: StoreCaller::new(store, Arc::clone(&health), sink, stops.immediate),
            suppression,
            dead_letters,
            retry_queue,
        };
        let loaded = writer.load().await?;
        health.producers().load(loaded.cursors);
        collector.load(&loaded.slots);
        Ok(Self {
            buffer,
            collecting: collector.run(received, batch_sender).boxed(),
            writing: writer.run(batches).boxed(),
            retrying: retrier.run(stops.retrier).boxed(),
        })
    }
}
