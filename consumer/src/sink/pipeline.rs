//! The whole sink of one store, put together as the settings say: buffer → collector → writer.

use std::{
    collections::BTreeSet,
    future::Future,
    sync::{Arc, Mutex},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{BATCH_BYTES_MAX, Batches, Collector, Failure, HandOver, Limits, Writer, hand_over};
use crate::{
    aside::{Aside, Retries},
    config::Config,
    dead_letters::DeadLetters,
    dsp_slots::DspSlots,
    health::Health,
    metrics::Metrics,
    producers::Producers,
    store::Store,
    subscription::buffer::{self, BufferReader, BufferWriter},
    suppression::Suppression,
};

/// What makes a sink end before its buffer does.
#[derive(Debug, Clone, Default)]
pub struct Stops {
    /// What is left in the buffer is left out when this is cancelled.
    pub fast_drain: CancellationToken,
    /// The store is not waited for any longer when this is cancelled.
    pub at_once: CancellationToken,
}

/// A sink that does not run yet.
#[derive(Debug)]
pub struct Pipeline {
    collector: Collector,
    received: BufferReader,
    hand_over: HandOver,
    batches: Batches,
    writer: Writer,
    retries: Retries,
    producers: Producers,
}

impl Pipeline {
    /// A sink into `store`, and the buffer that it takes from. It ends in order when all writers of the buffer are
    /// dropped. Cookies of DSPs that are `refused` go nowhere.
    #[must_use]
    pub fn new(
        config: &Config,
        store: Arc<dyn Store>,
        health: Arc<Health>,
        refused: watch::Receiver<BTreeSet<u32>>,
        metrics: &Metrics,
        stops: Stops,
    ) -> (BufferWriter, Self) {
        let (buffer, received) = buffer::buffer(config.storing.buffer_bytes, &metrics.subscription);
        let limits = Limits {
            flush_interval: config.storing.flush_interval,
            cookies_max: config.storing.batch_cookies,
            bytes_max: BATCH_BYTES_MAX,
        };
        let ttls = config.keeping.ttls();
        let suppression = Suppression::new(
            config.keeping.refresh_interval,
            config.keeping.refresh_bytes,
            ttls.clone(),
        );
        let suppression = Arc::new(Mutex::new(suppression));
        let (hand_over, batches) = hand_over();
        let dead_letters = DeadLetters::new(
            config.storing.dead_letters.clone(),
            config.storing.dead_letter_bytes,
            metrics.sink.dead_letters.clone(),
        );
        let aside = Aside::new(config.storing.dsps(), metrics.aside.clone());
        let retries = Retries::new(
            aside.clone(),
            Arc::clone(&store),
            Arc::clone(&health),
            dead_letters.clone(),
            refused.clone(),
            ttls.clone(),
        );
        let producers = health.producers().clone();
        let pipeline = Self {
            collector: Collector::new(
                limits,
                Arc::clone(&suppression),
                DspSlots::new(config.storing.dsps(), config.storing.dsps_max),
                ttls,
                refused,
                metrics.sink.clone(),
                stops.fast_drain,
            ),
            received,
            hand_over,
            batches,
            writer: Writer::new(
                store,
                suppression,
                health,
                metrics.sink.clone(),
                dead_letters,
                aside,
                stops.at_once,
            ),
            retries,
            producers,
        };
        (buffer, pipeline)
    }

    /// Waits for the store and reads where it stands, into the table of producers.
    ///
    /// # Errors
    /// When the store is broken, or it is told to stop.
    pub async fn load_cursors(&mut self) -> Result<(), Failure> {
        let loaded = self.writer.load().await?;
        self.producers.loaded(loaded.cursors);
        self.collector.load(&loaded.slots);
        Ok(())
    }

    /// The three tasks, to be run at the same time once the cursors are loaded: collector, writer, and what retries until
    /// `stop` is cancelled.
    pub fn into_tasks(
        self,
        stop: CancellationToken,
    ) -> (
        impl Future<Output = Result<(), Failure>> + Send + 'static,
        impl Future<Output = Result<(), Failure>> + Send + 'static,
        impl Future<Output = ()> + Send + 'static,
    ) {
        let collecting = self.collector.run(self.received, self.hand_over);
        let writing = self.writer.run(self.batches);
        (collecting, writing, self.retries.run(stop))
    }
}
