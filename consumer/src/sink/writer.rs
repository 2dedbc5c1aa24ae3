//! Writes and commits batches, and repeats failed attempts.
//!
//! A state machine with three [states](WriterState):
//!
//! ```text
//! Idle ──a batch──▶ Writing ──written──▶ Committing ──durable──▶ Idle
//!                      ▲                     │
//!                      └─────────────────────┘ durable, and the next batch is there
//! ```
//!
//! While a batch is committed, the writer makes one attempt to write the next batch. It uses the result only if the commit
//! succeeds: dead letters are written, and the suppression table is updated, only when all previous batches are durable.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use tokio::{
    sync::OwnedSemaphorePermit,
    task::yield_now,
    time::{Instant, timeout},
};

use super::{BatchReceiver, Failure, store_caller::StoreCaller};
use crate::{
    batch::Batch,
    clock,
    dead_letters::DeadLetters,
    retry_queue::RetryQueue,
    store::{Backlog, Cookies, StoreError, StoredState, WriteOutcome},
    suppression::{self, Suppression},
};

/// Interval of pings while the writer is idle.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of cookies recorded in the suppression table before its lock is released for the collector.
const RECORD_COOKIES_MAX: usize = 5_000;

/// The writer of a sink. It ends after its last batch, and immediately when its caller is stopped.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) caller: StoreCaller,
    pub(super) cookies: Arc<dyn Cookies>,
    pub(super) backlog: Option<Arc<dyn Backlog>>,
    pub(super) suppression: Arc<Mutex<Suppression>>,
    pub(super) dead_letters: DeadLetters,
    pub(super) retry_queue: RetryQueue,
}

/// State of the writer.
enum WriterState {
    /// No batch.
    Idle,
    /// `next` is being written; no batch is being committed.
    Writing { next: NextBatch, attempt: Attempt },
    /// `previous` is being committed while `next` is written, if there is one.
    Committing {
        previous: UncommittedBatch,
        commit: Commit,
        next: Option<NextBatch>,
    },
}

/// Result of the first write attempt; `None` if there was no attempt or its result cannot be used.
type Attempt = Option<Result<WriteOutcome, StoreError>>;

/// A commit in progress.
type Commit = BoxFuture<'static, Result<(), StoreError>>;

/// A batch received from the collector.
struct NextBatch {
    batch: Arc<Batch>,
    /// Released when the collector may send the next batch.
    idle: OwnedSemaphorePermit,
    began: Instant,
}

/// A batch that is written but not durable.
struct UncommittedBatch {
    batch: Arc<Batch>,
    written: WriteOutcome,
    began: Instant,
}

impl Writer {
    /// Waits until the store is writable, and loads its state.
    ///
    /// # Errors
    /// When the store failed permanently, or `stop` is cancelled.
    pub(super) async fn load(&mut self) -> Result<StoredState, Failure> {
        self.caller.retry(|| self.cookies.ping()).await?;
        if let Some(backlog) = &self.backlog {
            let entries = self.caller.retry(|| backlog.retry_entries()).await?;
            self.retry_queue.load(&entries);
        }
        let deletions = self.retry_queue.deletions();
        let mut loaded = self.caller.retry(|| self.cookies.load(deletions)).await?;
        // DSPs whose databases the retrier will create.
        loaded.slots.extend(self.retry_queue.dsps());
        Ok(loaded)
    }

    /// Writes and commits all batches.
    ///
    /// # Errors
    /// When the store failed permanently, or `stop` is cancelled.
    pub(super) async fn run(mut self, mut batches: BatchReceiver) -> Result<(), Failure> {
        let mut state = WriterState::Idle;
        loop {
            state = match state {
                WriterState::Idle => match self.wait_for(&mut batches).await? {
                    Some(next) => WriterState::Writing {
                        next,
                        attempt: None,
                    },
                    None => return Ok(()),
                },
                WriterState::Writing { next, attempt } => {
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
                } => self.finish_commit(previous, commit, &mut batches).await?,
                WriterState::Committing {
                    previous,
                    commit,
                    next: Some(next),
                } => self.commit_and_write(previous, commit, next).await?,
            };
        }
    }

    fn receive(&self, (mut batch, idle): (Batch, OwnedSemaphorePermit)) -> NextBatch {
        batch.defer_dsps(self.retry_queue.dsps());
        // Some covered cookies may have arrived before their deletion in this batch.
        if !batch.deletions().is_empty() {
            batch.remove_deleted(self.retry_queue.deletions());
        }
        NextBatch {
            batch: Arc::new(batch),
            idle,
            began: Instant::now(),
        }
    }

    /// From [`WriterState::Idle`]: waits for the next batch and pings the store. `None` at the end.
    async fn wait_for(
        &mut self,
        batches: &mut BatchReceiver,
    ) -> Result<Option<NextBatch>, Failure> {
        loop {
            tokio::select! {
                () = self.caller.stop.cancelled() => return Err(Failure::Stopped),
                next = timeout(PING_INTERVAL, batches.recv()) => if let Ok(next) = next {
                    return Ok(next.map(|next| self.receive(next)));
                },
            }
            let pinged = self.caller.unless_stopped(self.cookies.ping()).await?;
            self.caller.note(pinged.as_ref().err())?;
        }
    }

    /// From [`WriterState::Writing`]: writes a batch, unless an attempt has done so already.
    async fn write(
        &mut self,
        next: NextBatch,
        attempt: Attempt,
    ) -> Result<UncommittedBatch, Failure> {
        let NextBatch { batch, idle, began } = next;
        if let Some(attempt) = &attempt {
            self.caller.note(attempt.as_ref().err())?;
        }
        let mut written = match attempt {
            Some(Ok(written)) => written,
            _ => {
                self.caller
                    .retry(|| self.cookies.write(Arc::clone(&batch)))
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
        let (cookies, batch) = (Arc::clone(&self.cookies), Arc::clone(&previous.batch));
        let receipt = previous.written.receipt;
        async move { cookies.commit(&batch, receipt).await }.boxed()
    }

    /// From [`WriterState::Committing`] without a next batch: waits for the commit or the next batch.
    async fn finish_commit(
        &mut self,
        previous: UncommittedBatch,
        mut commit: Commit,
        batches: &mut BatchReceiver,
    ) -> Result<WriterState, Failure> {
        tokio::select! {
            biased;
            committed = self.caller.unless_stopped(&mut commit) => {
                self.committed(previous, committed?).await?;
                Ok(WriterState::Idle)
            }
            Some(next) = batches.recv() => Ok(WriterState::Committing {
                previous,
                commit,
                next: Some(self.receive(next)),
            }),
        }
    }

    /// From [`WriterState::Committing`] with a next batch: waits for the commit and one attempt to write that batch.
    async fn commit_and_write(
        &mut self,
        previous: UncommittedBatch,
        commit: Commit,
        next: NextBatch,
    ) -> Result<WriterState, Failure> {
        let write = self.cookies.write(Arc::clone(&next.batch));
        let both = async { tokio::join!(commit, write) }.boxed();
        let (committed, attempt) = self.caller.unless_stopped(both).await?;
        // After a failed commit, the server may have lost the writes since the last commit.
        let is_durable = self.committed(previous, committed).await?;
        Ok(WriterState::Writing {
            next,
            attempt: is_durable.then_some(attempt),
        })
    }

    /// Makes a batch durable, even if its commit failed, and counts it. Returns whether the commit succeeded.
    async fn committed(
        &mut self,
        mut previous: UncommittedBatch,
        committed: Result<(), StoreError>,
    ) -> Result<bool, Failure> {
        self.caller.note(committed.as_ref().err())?;
        if committed.is_err() {
            self.write_again(&mut previous).await?;
        }
        self.count_stored(&previous);
        Ok(committed.is_ok())
    }

    /// Writes and commits a batch again whose commit failed. Also diverts cookies that are rejected or deferred only now: the
    /// last attempt determines the outcome.
    async fn write_again(&mut self, previous: &mut UncommittedBatch) -> Result<(), Failure> {
        let batch = Arc::clone(&previous.batch);
        let mut after = self
            .caller
            .retry(|| {
                async {
                    let written = self.cookies.write(Arc::clone(&batch)).await?;
                    self.cookies.commit(&batch, written.receipt).await?;
                    Ok(written)
                }
                .boxed()
            })
            .await?;
        let before = std::mem::take(&mut previous.written);
        // Cookies in the retry queue or the dead-letter file keep that outcome, even if they are stored now.
        let diverted: HashSet<u32> = before.not_stored().collect();
        after.stale.retain(|index| !diverted.contains(index));
        after.rejected.retain(|it| !diverted.contains(&it.index));
        for it in &mut after.deferred {
            it.indices.retain(|index| !diverted.contains(index));
        }
        self.divert(&batch, &mut after).await?;
        let not_stored: HashSet<u32> = after.not_stored().collect();
        if !not_stored.is_empty() {
            self.suppression.lock().remove(&batch, &not_stored);
        }
        after.merge(WriteOutcome {
            stale: Vec::new(),
            ..before
        });
        previous.written = after;
        Ok(())
    }

    /// Adds deferred cookies to the retry queue. Writes rejected cookies, and those that do not fit, to the dead-letter file.
    async fn divert(
        &mut self,
        batch: &Arc<Batch>,
        written: &mut WriteOutcome,
    ) -> Result<(), Failure> {
        for it in &written.deferred {
            if let Some(why) = &it.why {
                self.caller.health.set_dsp_failing(it.dsp_id, why);
            }
        }
        if !written.deferred.is_empty() {
            let backlog = self.backlog.as_ref();
            let backlog = backlog.expect("a store without a backlog defers no cookies");
            let has_slot = |dsp_id| backlog.has_slot(dsp_id);
            let (entries, overflow) = self.retry_queue.pack(batch, &written.deferred, has_slot);
            if !entries.is_empty() {
                self.caller
                    .retry(|| backlog.put_retry_entries(&entries))
                    .await?;
                self.retry_queue.add_durable(&entries);
            }
            let did_not_fit: HashSet<u32> = overflow.iter().map(|it| it.index).collect();
            for it in &mut written.deferred {
                it.indices.retain(|index| !did_not_fit.contains(index));
            }
            written.rejected.extend(overflow);
        }
        let rejected = written.rejected.clone();
        self.dead_letters.write(batch, rejected).await;
        Ok(())
    }

    /// Counts a durable batch.
    fn count_stored(&self, previous: &UncommittedBatch) {
        let (batch, metrics) = (&previous.batch, &self.caller.metrics);
        let now = clock::now();
        let outcomes = previous.written.counts(batch.len());
        metrics.ledger.settled(&batch.counts(), &outcomes);
        metrics.batches.inc();
        let took = previous.began.elapsed();
        metrics.flush_seconds.observe(took.as_secs_f64());
        let cookies = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        metrics.batch_cookies.observe(f64::from(cookies));
        // Chunk times exclude queueing before release, which would make every node look slow.
        for (released, cookies) in batch.released() {
            let took = Duration::from_micros(now.since(released));
            metrics.stored_seconds.observe(took, cookies);
        }
        let deletions = self.retry_queue.deletions();
        deletions.begin_jobs(batch.deletions());
        self.caller
            .health
            .producers()
            .record_commit(batch.cursors());
        if !batch.deletions().is_empty() {
            deletions.notify();
        }
        for end in batch.completed_epochs() {
            metrics.producer_drains.inc();
            let (producer, epoch) = (&*end.producer, end.epoch.0);
            let final_sequence = end.sequence.0;
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
            stale = outcomes.stale,
            rejected = outcomes.rejected,
            in_retry_queue = outcomes.in_retry_queue,
            "batch stored"
        );
    }

    /// Records the outcomes in the suppression table, in steps that block neither the collector nor this thread for long.
    /// Uses no blocking thread, because simulations must be reproducible.
    async fn record(&self, batch: &Batch, written: &WriteOutcome) {
        let mut outcomes = suppression::outcomes(batch, written);
        for _ in (0..batch.len()).step_by(RECORD_COOKIES_MAX) {
            let part = outcomes.by_ref().take(RECORD_COOKIES_MAX);
            self.suppression.lock().record(batch.id(), part);
            yield_now().await;
        }
    }
}
