//! Writes and commits batches, one after another, and repeats failed attempts.
//!
//! While a batch is committed, the writer makes one attempt to write the next batch. It uses the result only if the commit
//! succeeds: dead letters are written, and the suppression table is updated, only when all previous batches are durable.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    task::yield_now,
    time::{Instant, timeout},
};

use super::{BatchReceiver, Failure, store_caller::StoreCaller, write_rate::WriteRate};
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
    /// Measured with each batch.
    pub(super) write_rate: WriteRate,
    pub(super) caller: StoreCaller,
    pub(super) cookies: Arc<dyn Cookies>,
    pub(super) backlog: Option<Arc<dyn Backlog>>,
    pub(super) suppression: Arc<Mutex<Suppression>>,
    pub(super) dead_letters: DeadLetters,
    pub(super) retry_queue: RetryQueue,
    /// Number of records copied from another node that are durable.
    pub(super) copied: watch::Sender<u64>,
}

/// Result of the first write attempt; `None` if there was no attempt or its result cannot be used.
type Attempt = Option<Result<WriteOutcome, StoreError>>;

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
        while let Some(next) = self.wait_for(&mut batches).await? {
            let mut next = Some((next, None));
            while let Some((batch, attempt)) = next {
                let written = self.write(batch, attempt).await?;
                next = self.commit(written, &mut batches).await?;
            }
        }
        Ok(())
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

    /// Waits for the next batch and pings the store. `None` at the end.
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

    /// Writes a batch, unless an attempt has done so already.
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

    /// Commits a batch. If the next one arrives before the end, also makes one attempt to write it, and returns it.
    async fn commit(
        &mut self,
        previous: UncommittedBatch,
        batches: &mut BatchReceiver,
    ) -> Result<Option<(NextBatch, Attempt)>, Failure> {
        let (cookies, batch) = (Arc::clone(&self.cookies), Arc::clone(&previous.batch));
        let receipt = previous.written.receipt;
        let mut commit = async move { cookies.commit(&batch, receipt).await }.boxed();
        let next = tokio::select! {
            biased;
            committed = self.caller.unless_stopped(&mut commit) => {
                self.committed(previous, committed?).await?;
                return Ok(None);
            }
            Some(next) = batches.recv() => self.receive(next),
        };
        let write = self.cookies.write(Arc::clone(&next.batch));
        let both = async { tokio::join!(commit, write) }.boxed();
        let (committed, attempt) = self.caller.unless_stopped(both).await?;
        // After a failed commit, the server may have lost the writes since the last commit.
        let is_durable = self.committed(previous, committed).await?;
        Ok(Some((next, is_durable.then_some(attempt))))
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
        self.write_rate.wrote(batch.len(), took);
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
        if batch.copied() > 0 {
            self.copied.send_replace(batch.copied());
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
