//! From batches into the store: written, then committed, and repeated until they are.
//!
//! The writer is in one of three [states](State), and one loop leads from each to the next:
//!
//! ```text
//! Idle ──a batch──▶ Writing ──written──▶ Committing ──durable──▶ Idle
//!                      ▲                     │
//!                      └─────────────────────┘ durable, and the next batch has come
//! ```
//!
//! While one batch is committed, a first attempt to write the next is made. It counts only if the commit succeeds: what
//! came of a batch is told, in dead letters and in the suppression table, when everything before it is durable.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use runtime::unix_micros;
use tokio::{
    sync::OwnedSemaphorePermit,
    task::yield_now,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{BatchReceiver, Failure, lock, store_caller::StoreCaller};
use crate::{
    batch::Batch,
    dead_letters::DeadLetters,
    health::Health,
    ledger::LedgerCounts,
    metrics,
    retry_queue::RetryQueue,
    store::{Store, StoreError, StoredState, WriteOutcome},
    suppression::{self, Suppression},
};

/// How often an idle store is asked whether it could be written.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Cookies of a batch that the suppression table records before it lets the collector in again.
const RECORD_COOKIES_MAX: usize = 5_000;

/// Uses the store for the sink.
#[derive(Debug)]
pub struct Writer {
    store: Arc<dyn Store>,
    suppression: Arc<Mutex<Suppression>>,
    health: Arc<Health>,
    metrics: metrics::Sink,
    dead_letters: DeadLetters,
    retry_queue: RetryQueue,
    stop: CancellationToken,
    attempts: StoreCaller,
}

/// What the writer is doing.
enum WriterState {
    /// There is nothing to write.
    Idle,
    /// This batch is written, and there is none to be committed.
    CollectionWrite { next: NextBatch, attempt: Attempt },
    /// `previous` is committed, and `next` is written meanwhile if it has come.
    Committing {
        previous: UncommittedBatch,
        commit: Commit,
        next: Option<NextBatch>,
    },
}

/// What came of a first attempt to write, if there was one that counts.
type Attempt = Option<Result<WriteOutcome, StoreError>>;

/// A commit under way.
type Commit = BoxFuture<'static, Result<(), StoreError>>;

/// A batch as the writer takes it.
struct NextBatch {
    batch: Arc<Batch>,
    /// Lets the collector hand over the next.
    idle: OwnedSemaphorePermit,
    began: Instant,
}

/// A batch that was written, and must become durable.
struct UncommittedBatch {
    batch: Arc<Batch>,
    written: WriteOutcome,
    began: Instant,
}

impl Writer {
    /// A writer that gives up when `stop` is cancelled; an orderly end is the end of its batches.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        suppression: Arc<Mutex<Suppression>>,
        health: Arc<Health>,
        metrics: metrics::Sink,
        dead_letters: DeadLetters,
        retry_queue: RetryQueue,
        stop: CancellationToken,
    ) -> Self {
        let attempts = StoreCaller::new(
            Arc::clone(&store),
            Arc::clone(&health),
            metrics.clone(),
            stop.clone(),
        );
        Self {
            store,
            suppression,
            health,
            metrics,
            dead_letters,
            retry_queue,
            stop,
            attempts,
        }
    }

    /// Waits for the store, until it can be written, and reads what it has beside cookies.
    ///
    /// # Errors
    /// When the store is broken, or at `stop`.
    pub async fn load(&mut self) -> Result<StoredState, Failure> {
        self.attempts.until_done(|store| store.ping()).await?;
        let mut loaded = self.attempts.until_done(|store| store.load()).await?;
        self.retry_queue.load(&loaded.retry_queue);
        // These get their slots soon.
        loaded.slots.extend(self.retry_queue.dsps());
        Ok(loaded)
    }

    /// Writes and commits batches until there are no more.
    ///
    /// # Errors
    /// When the store is broken, or at `stop`.
    pub async fn run(mut self, mut batches: BatchReceiver) -> Result<(), Failure> {
        let mut state = WriterState::Idle;
        loop {
            state = match state {
                WriterState::Idle => match self.wait_for(&mut batches).await? {
                    Some(next) => WriterState::CollectionWrite {
                        next,
                        attempt: None,
                    },
                    None => return Ok(()),
                },
                WriterState::CollectionWrite { next, attempt } => {
                    let previous = self.write(next, attempt).await?;
                    WriterState::Committing {
                        commit: self.commit(&previous),
                        previous,
                        next: None,
                    }
                }
                WriterState::Committing {
                    previous,
                    commit,
                    next: None,
                } => self.commit_alone(previous, commit, &mut batches).await?,
                WriterState::Committing {
                    previous,
                    commit,
                    next: Some(next),
                } => self.commit_beside(previous, commit, next).await?,
            };
        }
    }

    fn take(&self, (mut batch, idle): (Batch, OwnedSemaphorePermit)) -> NextBatch {
        batch.defer_dsps(self.retry_queue.dsps());
        NextBatch {
            batch: Arc::new(batch),
            idle,
            began: Instant::now(),
        }
    }

    /// From [`WriterState::Idle`]: the next batch; meanwhile the store is pinged. None when there will be none.
    async fn wait_for(
        &mut self,
        batches: &mut BatchReceiver,
    ) -> Result<Option<NextBatch>, Failure> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return Err(Failure::Stopped),
                next = timeout(PING_INTERVAL, batches.0.recv()) => if let Ok(next) = next {
                    return Ok(next.map(|next| self.take(next)));
                },
            }
            let ping = self.store.ping();
            let pinged = self.attempts.unless_stopped(ping).await?;
            self.attempts.note(pinged.as_ref().err())?;
        }
    }

    /// From [`WriterState::CollectionWrite`]: writes a batch, unless an attempt has done so already.
    async fn write(
        &mut self,
        next: NextBatch,
        attempt: Attempt,
    ) -> Result<UncommittedBatch, Failure> {
        let NextBatch { batch, idle, began } = next;
        if let Some(attempt) = &attempt {
            self.attempts.note(attempt.as_ref().err())?;
        }
        let mut written = match attempt {
            Some(Ok(written)) => written,
            _ => {
                self.attempts
                    .until_done(|store| store.write(Arc::clone(&batch)))
                    .await?
            }
        };
        self.divert(&batch, &mut written).await?;
        self.record(&batch, &written).await;
        drop(idle);
        Ok(UncommittedBatch {
            batch,
            written,
            began,
        })
    }

    fn commit(&self, previous: &UncommittedBatch) -> Commit {
        let (store, batch) = (Arc::clone(&self.store), Arc::clone(&previous.batch));
        let receipt = previous.written.receipt;
        async move { store.commit(&batch, receipt).await }.boxed()
    }

    /// From [`WriterState::Committing`] with no next batch: until the commit ends, or one comes.
    async fn commit_alone(
        &mut self,
        previous: UncommittedBatch,
        mut commit: Commit,
        batches: &mut BatchReceiver,
    ) -> Result<WriterState, Failure> {
        tokio::select! {
            biased;
            committed = self.attempts.unless_stopped(&mut commit) => {
                self.committed(previous, committed?).await?;
                Ok(WriterState::Idle)
            }
            Some(next) = batches.0.recv() => Ok(WriterState::Committing {
                previous,
                commit,
                next: Some(self.take(next)),
            }),
        }
    }

    /// From [`WriterState::Committing`] with a next batch: until the commit and one attempt to write that batch have ended.
    async fn commit_beside(
        &mut self,
        previous: UncommittedBatch,
        commit: Commit,
        next: NextBatch,
    ) -> Result<WriterState, Failure> {
        let write = self.store.write(Arc::clone(&next.batch));
        let both = async { tokio::join!(commit, write) }.boxed();
        let (committed, attempt) = self.attempts.unless_stopped(both).await?;
        // After a failure nothing that was written since the last commit is certain.
        let is_durable = self.committed(previous, committed).await?;
        Ok(WriterState::CollectionWrite {
            next,
            attempt: is_durable.then_some(attempt),
        })
    }

    /// Makes sure that a batch is durable, whatever came of its commit, and counts it. Tells whether that commit succeeded.
    async fn committed(
        &mut self,
        mut previous: UncommittedBatch,
        committed: Result<(), StoreError>,
    ) -> Result<bool, Failure> {
        self.attempts.note(committed.as_ref().err())?;
        if committed.is_err() {
            self.write_again(&mut previous).await?;
        }
        self.stored(&previous);
        Ok(committed.is_ok())
    }

    /// Writes and commits a batch of which it is not known whether the store has it. What the store refuses only now is
    /// set aside as well: what became of the batch is what came of the last time.
    async fn write_again(&mut self, previous: &mut UncommittedBatch) -> Result<(), Failure> {
        let batch = Arc::clone(&previous.batch);
        let mut after = self
            .attempts
            .until_done(|store| {
                let batch = Arc::clone(&batch);
                async move {
                    let written = store.write(Arc::clone(&batch)).await?;
                    store.commit(&batch, written.receipt).await?;
                    Ok(written)
                }
                .boxed()
            })
            .await?;
        let before = std::mem::take(&mut previous.written);
        // What was set aside or became a dead letter has its fate, wherever else it is now.
        let diverted: HashSet<u32> = before.not_stored().collect();
        after.stale.retain(|index| !diverted.contains(index));
        after.rejected.retain(|it| !diverted.contains(&it.index));
        for it in &mut after.deferred {
            it.indices.retain(|index| !diverted.contains(index));
        }
        self.divert(&batch, &mut after).await?;
        let not_stored: HashSet<u32> = after.not_stored().collect();
        if !not_stored.is_empty() {
            lock(&self.suppression).forget(&batch, &not_stored);
        }
        after.merge(WriteOutcome {
            stale: Vec::new(),
            ..before
        });
        previous.written = after;
        Ok(())
    }

    /// Sets aside what was not taken, and writes dead letters for what was refused, or has no room aside.
    async fn divert(
        &mut self,
        batch: &Arc<Batch>,
        written: &mut WriteOutcome,
    ) -> Result<(), Failure> {
        for it in &written.deferred {
            if let Some(why) = &it.why {
                self.health.dsp_fails(it.dsp_id, why);
            }
        }
        let has_slot = |dsp_id| self.store.has_slot(dsp_id);
        let (entries, overflow) = self.retry_queue.pack(batch, &written.deferred, has_slot);
        if !entries.is_empty() {
            self.attempts
                .until_done(|store| store.put_retry_entries(Arc::clone(&entries)))
                .await?;
            self.retry_queue.put(&entries);
        }
        let refused: HashSet<u32> = overflow.iter().map(|it| it.index).collect();
        for it in &mut written.deferred {
            it.indices.retain(|index| !refused.contains(index));
        }
        written.rejected.extend(overflow);
        let rejected = written.rejected.clone();
        self.dead_letters.write(batch, rejected).await;
        Ok(())
    }

    /// Counts a batch that is durable.
    fn stored(&self, previous: &UncommittedBatch) {
        let (batch, metrics) = (&previous.batch, &self.metrics);
        let now = unix_micros();
        let stale = previous.written.stale.len() as u64;
        let rejected = previous.written.rejected.len() as u64;
        let deferred = previous.written.deferred.iter();
        let in_retry_queue = deferred.map(|it| it.indices.len() as u64).sum();
        let written = batch.len() as u64 - stale - rejected - in_retry_queue;
        let store_outcomes = LedgerCounts {
            written,
            stale,
            rejected,
            in_retry_queue,
            ..LedgerCounts::default()
        };
        metrics.ledger.settled(&batch.counts(), &store_outcomes);
        metrics.batches.inc();
        let took = previous.began.elapsed();
        metrics.flush_seconds.observe(took.as_secs_f64());
        let cookies = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        metrics.batch_cookies.observe(f64::from(cookies));
        // From the times of chunks: what waited for its release would make every node look slow.
        for (released, cookies) in batch.released() {
            let took = Duration::from_micros(now.saturating_sub(released));
            metrics.stored_seconds.observe(took, cookies);
        }
        self.health.producers().committed(batch.cursors());
        for end in batch.completed_epochs() {
            metrics.completed_epochs.inc();
            let (producer, epoch, final_sequence) = (&*end.producer, end.epoch, end.sequence);
            tracing::info!(
                producer,
                epoch,
                final_sequence,
                "producer drained; all its cookies are stored"
            );
        }
        tracing::debug!(
            cookies,
            ?took,
            stale,
            rejected,
            in_retry_queue,
            "batch stored"
        );
    }

    /// Lets the suppression table know what was stored, in parts: so that neither the collector waits for long for the
    /// table, nor other tasks for this one. On the task itself and not on a thread for blocking work: the order of
    /// events then depends on nothing but the runtime, and a simulation can repeat it.
    async fn record(&self, batch: &Batch, written: &WriteOutcome) {
        let mut outcomes = suppression::outcomes(batch, written);
        for _ in (0..batch.len()).step_by(RECORD_COOKIES_MAX) {
            let part = outcomes.by_ref().take(RECORD_COOKIES_MAX);
            lock(&self.suppression).record(batch.id(), part);
            yield_now().await;
        }
    }
}
