//! The whole sink of one store, put together as the settings say: buffer → collector → writer.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{BATCH_BYTES_MAX, BatchLimits, Collector, Failure, Writer, batch_sender};
use crate::{
    config::Config,
    dead_letters::DeadLetters,
    dsp_slots::DspSlots,
    health::Health,
    metrics::Metrics,
    retry_queue::{Retrier, RetryQueue},
    store::Store,
    subscription::buffer::{self, BufferWriter},
    suppression::Suppression,
};

/// What makes a sink end before its buffer does.
#[derive(Debug, Clone, Default)]
pub struct StopTokens {
    /// What is left in the buffer is left out when this is cancelled.
    pub fast_drain: CancellationToken,
    /// The store is not waited for any longer when this is cancelled.
    pub at_once: CancellationToken,
    /// What is set aside is not retried any longer when this is cancelled.
    pub retrier: CancellationToken,
}

/// A sink, to be run: its three tasks at the same time. It ends in order when all writers of the buffer are dropped.
pub struct Pipeline {
    /// What it takes from.
    pub buffer: BufferWriter,
    /// From the buffer to batches.
    pub collecting: BoxFuture<'static, Result<(), Failure>>,
    /// From batches into the store.
    pub writing: BoxFuture<'static, Result<(), Failure>>,
    /// What is set aside into the store.
    pub retrying: BoxFuture<'static, ()>,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Waits for the store and reads where it stands, into the table of producers; then a sink into it. Cookies of DSPs that
    /// are `refused` go nowhere.
    ///
    /// # Errors
    /// When the store is broken, or it is told to stop.
    pub async fn open(
        config: &Config,
        store: Arc<dyn Store>,
        health: Arc<Health>,
        refused: watch::Receiver<BTreeSet<u32>>,
        metrics: &Metrics,
        stops: StopTokens,
    ) -> Result<Self, Failure> {
        let (buffer, received) = buffer::buffer(config.storage.buffer_bytes, &metrics.subscription);
        let limits = BatchLimits {
            flush_interval: config.storage.flush_interval,
            cookies_max: config.storage.batch_cookies,
            bytes_max: BATCH_BYTES_MAX,
        };
        let ttls = config.retention.ttls();
        let suppression = Suppression::new(
            config.retention.refresh_interval,
            config.retention.refresh_bytes,
            ttls.clone(),
        );
        let suppression = Arc::new(Mutex::new(suppression));
        let (batch_sender, batches) = batch_sender();
        let dead_letters = DeadLetters::new(
            config.storage.dead_letters.clone(),
            config.storage.dead_letter_bytes,
            metrics.sink.dead_letters.clone(),
        );
        let retry_queue = RetryQueue::new(config.storage.dsps(), metrics.retry_queue.clone());
        let retrier = Retrier::new(
            retry_queue.clone(),
            Arc::clone(&store),
            Arc::clone(&health),
            dead_letters.clone(),
            refused.clone(),
            ttls.clone(),
        );
        let mut collector = Collector::new(
            limits,
            Arc::clone(&suppression),
            DspSlots::new(config.storage.dsps(), config.storage.unlisted_dsps_max),
            ttls,
            refused,
            metrics.sink.clone(),
            stops.fast_drain,
        );
        let mut writer = Writer::new(
            store,
            suppression,
            Arc::clone(&health),
            metrics.sink.clone(),
            dead_letters,
            retry_queue,
            stops.at_once,
        );
        let loaded = writer.load().await?;
        health.producers().loaded(loaded.cursors);
        collector.load(&loaded.slots);
        Ok(Self {
            buffer,
            collecting: collector.run(received, batch_sender).boxed(),
            writing: writer.run(batches).boxed(),
            retrying: retrier.run(stops.retrier).boxed(),
        })
    }
}
