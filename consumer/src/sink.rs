//! From the buffer into the store: two tasks, so that one batch is collected while the one before is written.
//!
//! The collector hands a batch over when it is old enough (the flush interval after its first cookie) or full,
//! and the writer is idle. While the writer is busy the batch grows up to its bound; then collecting stops, the
//! buffer fills, and reading stops. There are never more than two batches.
//!
//! The writer repeats a batch until the store has it, for ever, and says so only when that begins and ends. The
//! cursors are part of the batch: they are durable after its cookies, or not at all.
//!
//! The end of the buffer ends the collector after its last partial batch, and that ends the writer: nothing that
//! was received is left behind, unless a drain is in a hurry.

use std::{collections::HashSet, sync::Arc, time::Duration};

use cookiesync::{process::unix_micros, wire::ChunkRef};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::Backoff,
    batch::{Batch, Cursor},
    health::Health,
    metrics::{self, gauge_value},
    store::{Answer, Store, StoreError},
    subscription::buffer::{BufferReader, Item},
};

/// How often an idle store is asked whether it is still there.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How long one attempt may take before the store is reported as failing; the attempt goes on.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far ahead of this machine's clock a producer's is believed.
const AHEAD_MICROS_MAX: u64 = 5 * 60 * 1_000_000;

/// Most bytes of chunks that one batch keeps: two batches and the buffer are what the sink takes of memory.
pub const BATCH_BYTES_MAX: usize = 16 << 20;

/// When a batch is handed over.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long after its first cookie, if the writer is idle.
    pub flush_interval: Duration,
    /// At how many distinct cookies it takes no more.
    pub cookies_max: usize,
    /// At how many bytes of chunks it takes no more.
    pub bytes_max: usize,
}

/// Makes the way from the collector to the writer, which holds one batch at most.
#[must_use]
pub fn hand_over() -> (HandOver, Batches) {
    let (sender, receiver) = mpsc::channel(1);
    let hand_over = HandOver {
        batches: sender,
        idle: Arc::new(Semaphore::new(1)),
    };
    (hand_over, Batches(receiver))
}

/// The collector's end.
#[derive(Debug)]
pub struct HandOver {
    batches: mpsc::Sender<(Batch, OwnedSemaphorePermit)>,
    /// Its one permit is out while a batch is being written.
    idle: Arc<Semaphore>,
}

/// The writer's end.
#[derive(Debug)]
pub struct Batches(mpsc::Receiver<(Batch, OwnedSemaphorePermit)>);

impl HandOver {
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

/// What a collector has beside its two ends.
#[derive(Debug)]
pub struct Collector {
    limits: Limits,
    metrics: metrics::Sink,
    /// What is left in the buffer is left out when this is cancelled.
    hurry: CancellationToken,
    /// Producers whose clock is ahead, as far as it was said.
    ahead: HashSet<Arc<str>>,
}

impl Collector {
    /// A collector that ends early when `hurry` is cancelled.
    #[must_use]
    pub fn new(limits: Limits, metrics: metrics::Sink, hurry: CancellationToken) -> Self {
        Self {
            limits,
            metrics,
            hurry,
            ahead: HashSet::new(),
        }
    }

    /// Collects batches until the buffer ends.
    ///
    /// In a hurry it hands over what it has and leaves the rest of the buffer out. No cursor of that was committed,
    /// so the producers send it again.
    ///
    /// # Errors
    /// When the writer is gone.
    pub async fn run(
        mut self,
        mut buffer: BufferReader,
        hand_over: HandOver,
    ) -> Result<(), Failure> {
        let limits = self.limits;
        let mut batch = Batch::new(limits.cookies_max, limits.bytes_max);
        let mut due_at: Option<Instant> = None;
        loop {
            let is_due = batch.is_full() || due_at.is_some_and(|due_at| due_at <= Instant::now());
            tokio::select! {
                idle = hand_over.idle(), if is_due => {
                    due_at = None;
                    let next = batch.next();
                    hand_over.give(std::mem::replace(&mut batch, next), idle).await?;
                }
                item = buffer.pop(), if !batch.is_full() => {
                    let Some(item) = item else { break };
                    due_at.get_or_insert_with(|| Instant::now() + limits.flush_interval);
                    self.take(&mut batch, item);
                }
                () = sleep_until(due_at.unwrap_or_else(Instant::now)), if due_at.is_some() && !is_due => {}
                () = self.hurry.cancelled() => {
                    leave_out(&mut buffer);
                    break;
                }
            }
        }
        if !batch.is_empty() {
            let idle = hand_over.idle().await;
            hand_over.give(batch, idle).await?;
        }
        Ok(())
    }

    fn take(&mut self, batch: &mut Batch, item: Item) {
        match item {
            Item::Chunk(producer, chunk) => {
                let latest = unix_micros() + AHEAD_MICROS_MAX;
                self.check_clock(&producer, &chunk, latest);
                batch.push(&producer, &chunk, latest);
            }
            Item::Cursor(cursor) => batch.advance(&cursor),
        }
    }

    /// Counts and says that a producer's clock is ahead: its cookies would win against all others until then.
    fn check_clock(&mut self, producer: &Arc<str>, chunk: &ChunkRef, latest: u64) {
        let header = chunk.header();
        if header.accepted_unix_micros > latest {
            self.metrics.clock_clamped.inc_by(u64::from(header.count));
            if self.ahead.insert(Arc::clone(producer)) {
                tracing::warn!(
                    producer = &**producer,
                    "producer's clock is more than five minutes ahead of ours: its times are cut down to that"
                );
            }
        } else if !self.ahead.is_empty() && self.ahead.remove(producer) {
            tracing::info!(
                producer = &**producer,
                "producer's clock agrees with ours again"
            );
        }
    }
}

/// Says how much of the buffer is left out.
fn leave_out(buffer: &mut BufferReader) {
    let mut cookies = 0;
    while let Some(item) = buffer.try_pop() {
        if let Item::Chunk(_, chunk) = item {
            cookies += u64::from(chunk.header().count);
        }
    }
    if cookies > 0 {
        tracing::warn!(
            cookies,
            "no time to store what was received last: it comes again after the start, if the producers still have it"
        );
    }
}

/// Uses the store for the sink, and tells health, metrics and log when it begins and ends to fail.
#[derive(Debug)]
pub struct Writer {
    store: Arc<dyn Store>,
    health: Arc<Health>,
    metrics: metrics::Sink,
    stop: CancellationToken,
    is_down: bool,
}

/// Why the writer gave up.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The store will never work again in this process.
    #[error("the store broke: {0}")]
    Broken(String),
    /// The writer was told to stop at once.
    #[error("stopped while the store was not reachable")]
    Stopped,
}

impl Writer {
    /// A writer that gives up when `stop` is cancelled; an orderly end is the end of its batches.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        health: Arc<Health>,
        metrics: metrics::Sink,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            health,
            metrics,
            stop,
            is_down: false,
        }
    }

    /// Waits for the store and reads where it stands.
    ///
    /// # Errors
    /// When the store is broken, or at `stop`.
    pub async fn load_cursors(&mut self) -> Result<Vec<Cursor>, Failure> {
        let cursors = self.until_done(|store| store.load_cursors()).await?;
        for cursor in &cursors {
            self.show(cursor);
        }
        Ok(cursors)
    }

    /// Writes batches until there are no more.
    ///
    /// # Errors
    /// When the store is broken, or at `stop`.
    pub async fn run(mut self, mut batches: Batches) -> Result<(), Failure> {
        loop {
            let stop = self.stop.clone();
            let next = tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                next = timeout(PING_INTERVAL, batches.0.recv()) => next,
            };
            match next {
                Ok(Some((batch, idle))) => {
                    self.write(Arc::new(batch)).await?;
                    drop(idle);
                }
                Ok(None) => return Ok(()),
                Err(_) => {
                    let store = Arc::clone(&self.store);
                    let pinged = tokio::select! {
                        () = stop.cancelled() => return Err(Failure::Stopped),
                        pinged = self.patiently(store.ping()) => pinged,
                    };
                    self.note(pinged.as_ref().err())?;
                }
            }
        }
    }

    async fn write(&mut self, batch: Arc<Batch>) -> Result<(), Failure> {
        let began = Instant::now();
        let counts = batch.counts();
        self.metrics.received.inc_by(counts.received);
        self.metrics.superseded.inc_by(counts.superseded);
        self.metrics.malformed.inc_by(counts.malformed);
        let done = self
            .until_done(|store| store.write(Arc::clone(&batch)))
            .await?;
        let (now, metrics) = (unix_micros(), &self.metrics);
        metrics.written.inc_by(done.written);
        metrics.stale.inc_by(done.stale);
        metrics.rejected.inc_by(done.rejected);
        metrics.batches.inc();
        metrics.flush_seconds.observe(began.elapsed().as_secs_f64());
        let cookies = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        metrics.batch_cookies.observe(f64::from(cookies));
        metrics
            .stored_seconds
            .observe(batch.accepted().map(|(accepted, cookies)| {
                let age = Duration::from_micros(now.saturating_sub(accepted));
                (age, cookies)
            }));
        for cursor in batch.cursors() {
            self.show(cursor);
            if cursor.complete {
                let (producer, epoch, sequence) =
                    (&*cursor.producer, cursor.epoch, cursor.sequence);
                tracing::info!(
                    producer,
                    epoch,
                    sequence,
                    "producer said goodbye and all it had is stored"
                );
            }
        }
        tracing::debug!(cookies, took = ?began.elapsed(), ?done, "batch stored");
        Ok(())
    }

    fn show(&self, cursor: &Cursor) {
        self.metrics
            .cursor_sequence
            .with_label_values(&[&cursor.producer])
            .set(gauge_value(cursor.sequence));
    }

    /// Repeats what the store cannot do now, after growing delays.
    async fn until_done<T>(
        &mut self,
        ask: impl for<'a> Fn(&'a dyn Store) -> Answer<'a, T>,
    ) -> Result<T, Failure> {
        let store = Arc::clone(&self.store);
        let stop = self.stop.clone();
        let mut backoff = Backoff::default();
        loop {
            let asked = self.patiently(ask(&*store));
            let answer = tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                answer = asked => answer,
            };
            self.note(answer.as_ref().err())?;
            if let Ok(done) = answer {
                return Ok(done);
            }
            tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                () = sleep(backoff.delay()) => {}
            }
        }
    }

    /// Reports the store as failing when it does not answer soon, and waits on.
    async fn patiently<T>(&mut self, mut asked: Answer<'_, T>) -> Result<T, StoreError> {
        match timeout(PATIENCE, &mut asked).await {
            Ok(answer) => answer,
            Err(_) => {
                self.is_failing(format!("no answer for {PATIENCE:?}"));
                asked.await
            }
        }
    }

    fn is_failing(&mut self, why: String) {
        self.metrics.store_up.set(0);
        if !std::mem::replace(&mut self.is_down, true) {
            tracing::warn!(why, "the store does not work, trying on");
        }
        self.health.store_fails(why);
    }

    /// Takes note of how an attempt ended; an error only when none can ever succeed.
    fn note(&mut self, error: Option<&StoreError>) -> Result<(), Failure> {
        let Some(error) = error else {
            if self.is_down {
                tracing::info!("the store works again");
            }
            self.is_down = false;
            self.health.store_works();
            self.metrics.store_up.set(1);
            return Ok(());
        };
        self.metrics.store_errors.inc();
        self.is_failing(error.to_string());
        match error {
            StoreError::Unavailable(_) => Ok(()),
            StoreError::Broken(why) => Err(Failure::Broken(why.clone())),
        }
    }
}

#[cfg(test)]
mod tests;
