//! From batches into the store: written, then committed, and repeated until they are.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;
use runtime::unix_micros;
use tokio::{
    sync::OwnedSemaphorePermit,
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Batches, Failure, lock};
use crate::{
    aside::Aside,
    backoff::Backoff,
    batch::{Batch, Cursor},
    dead_letters::DeadLetters,
    health::Health,
    ledger::Settled,
    losses::Numbered,
    metrics,
    places::Place,
    store::{Answer, Store, StoreError, Written},
    suppression::Suppression,
};

/// How often an idle store is asked whether it could be written.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How long one attempt may take before the store is reported as failing; the attempt goes on.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most reasons of one outage that are logged.
const REASONS_MAX: usize = 8;

/// Cookies of a batch that the suppression table records before it lets the collector in again.
const RECORDED_AT_ONCE: usize = 5_000;

/// Uses the store for the sink, and tells health, metrics and log when it begins and ends to fail.
#[derive(Debug)]
pub struct Writer {
    store: Arc<dyn Store>,
    suppression: Arc<Mutex<Suppression>>,
    health: Arc<Health>,
    metrics: metrics::Sink,
    dead_letters: DeadLetters,
    /// Of a store that may fail for one DSP alone.
    aside: Option<Aside>,
    stop: CancellationToken,
    /// Why the store does not work, as far as it was logged; empty while it works.
    reasons: Vec<String>,
}

/// What a store has beside cookies.
#[derive(Debug)]
pub struct Loaded {
    /// Where it stands.
    pub cursors: Vec<Cursor>,
    /// Of which DSPs it has cookies, or soon will.
    pub places: Vec<Place>,
    /// The records of losses that it keeps.
    pub losses: Vec<Numbered>,
}

/// A batch as the writer takes it.
struct Taken {
    batch: Arc<Batch>,
    /// Lets the collector hand over the next.
    idle: OwnedSemaphorePermit,
    began: Instant,
}

/// A batch that was written, and is to be committed.
struct Done {
    batch: Arc<Batch>,
    written: Written,
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
        aside: Option<Aside>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            suppression,
            health,
            metrics,
            dead_letters,
            aside,
            stop,
            reasons: Vec::new(),
        }
    }

    /// Waits for the store, until it can be written, and reads what it has beside cookies.
    ///
    /// # Errors
    /// When the store is broken, or at `stop`.
    pub async fn load(&mut self) -> Result<Loaded, Failure> {
        self.until_done(|store| store.ping()).await?;
        let cursors = self.until_done(|store| store.load_cursors()).await?;
        // Those set aside get theirs soon.
        let aside = self.aside.iter().flat_map(|aside| aside.dsps().into_keys());
        let now = unix_micros();
        let mut places: Vec<Place> = aside.map(|dsp_id| (dsp_id, now)).collect();
        places.extend(self.load_places().await?);
        let losses = self.until_done(|store| store.load_losses()).await?;
        Ok(Loaded {
            cursors,
            places,
            losses,
        })
    }

    /// However long it takes: a store without a record of them is read through.
    async fn load_places(&mut self) -> Result<Vec<Place>, Failure> {
        let (store, stop) = (Arc::clone(&self.store), self.stop.clone());
        let mut backoff = Backoff::default();
        loop {
            let loaded = tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                loaded = store.load_places() => loaded,
            };
            self.note(loaded.as_ref().err())?;
            if let Ok(places) = loaded {
                return Ok(places);
            }
            tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                () = sleep(backoff.delay()) => {}
            }
        }
    }

    /// Writes and commits batches until there are no more.
    ///
    /// # Errors
    /// When the store is broken, or at `stop`.
    pub async fn run(mut self, mut batches: Batches) -> Result<(), Failure> {
        while let Some(next) = self.wait_for(&mut batches).await? {
            let mut done = self.write(next, None).await?;
            while let Some(next) = self.commit(&mut done, &mut batches).await? {
                self.stored(&done);
                done = next;
            }
            self.stored(&done);
        }
        Ok(())
    }

    fn take(&self, (mut batch, idle): (Batch, OwnedSemaphorePermit)) -> Taken {
        if let Some(aside) = &self.aside {
            batch.hold(aside.dsps().into_keys().collect());
        }
        Taken {
            batch: Arc::new(batch),
            idle,
            began: Instant::now(),
        }
    }

    /// The next batch, while there is nothing to be committed.
    async fn wait_for(&mut self, batches: &mut Batches) -> Result<Option<Taken>, Failure> {
        let (store, stop) = (Arc::clone(&self.store), self.stop.clone());
        loop {
            tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                next = timeout(PING_INTERVAL, batches.0.recv()) => if let Ok(next) = next {
                    return Ok(next.map(|next| self.take(next)));
                },
            }
            let pinged = self.unless_stopped(store.ping()).await?;
            self.note(pinged.as_ref().err())?;
        }
    }

    /// Commits a batch that was written, and writes the next if one comes meanwhile.
    async fn commit(
        &mut self,
        done: &mut Done,
        batches: &mut Batches,
    ) -> Result<Option<Done>, Failure> {
        let (store, stop) = (Arc::clone(&self.store), self.stop.clone());
        let batch = Arc::clone(&done.batch);
        let mut committing = store.commit(&batch, done.written.receipt);
        let (mut committed, mut next) = (None, None);
        tokio::select! {
            biased;
            () = stop.cancelled() => return Err(Failure::Stopped),
            answer = &mut committing => committed = Some(answer),
            handed = batches.0.recv() => next = handed.map(|next| self.take(next)),
        }
        let mut attempt = None;
        let committed = match (committed, &next) {
            (Some(committed), _) => committed,
            (None, None) => self.unless_stopped(committing).await?,
            (None, Some(next)) => {
                let writing = store.write(Arc::clone(&next.batch));
                let both = async { Ok(tokio::join!(committing, writing)) };
                match self.unless_stopped(both.boxed()).await? {
                    Ok((committed, written)) => {
                        attempt = Some(written);
                        committed
                    }
                    Err(error) => Err(error),
                }
            }
        };
        self.note(committed.as_ref().err())?;
        if committed.is_err() {
            // Nothing that was written since the last commit is certain.
            attempt = None;
            self.write_again(done).await?;
        }
        match next {
            Some(next) => self.write(next, attempt).await.map(Some),
            None => Ok(None),
        }
    }

    /// Writes and commits a batch of which it is not known whether the store has it. What the store refuses only now is
    /// set aside as well: what became of the batch is what came of the last time.
    async fn write_again(&mut self, done: &mut Done) -> Result<(), Failure> {
        let batch = Arc::clone(&done.batch);
        let written = self
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
        let mut after = written;
        let before = std::mem::take(&mut done.written);
        // What was set aside or has a letter has its fate, wherever else it is now.
        let has_fate: HashSet<u32> = before.not_stored().collect();
        after.stale.retain(|index| !has_fate.contains(index));
        after.rejected.retain(|it| !has_fate.contains(&it.index));
        for it in &mut after.not_taken {
            it.indices.retain(|index| !has_fate.contains(index));
        }
        self.put_elsewhere(&batch, &mut after).await?;
        let not_stored: HashSet<u32> = after.not_stored().collect();
        if !not_stored.is_empty() {
            lock(&self.suppression).forget(&batch, &not_stored);
        }
        after.merge(Written {
            stale: Vec::new(),
            ..before
        });
        done.written = after;
        Ok(())
    }

    /// Writes a batch, unless an attempt has done so already.
    async fn write(
        &mut self,
        taken: Taken,
        attempt: Option<Result<Written, StoreError>>,
    ) -> Result<Done, Failure> {
        let Taken { batch, idle, began } = taken;
        if let Some(attempt) = &attempt {
            self.note(attempt.as_ref().err())?;
        }
        let mut written = match attempt {
            Some(Ok(written)) => written,
            _ => {
                self.until_done(|store| store.write(Arc::clone(&batch)))
                    .await?
            }
        };
        self.put_elsewhere(&batch, &mut written).await?;
        self.record(&batch, &written).await;
        drop(idle);
        Ok(Done {
            batch,
            written,
            began,
        })
    }

    /// Sets aside what was not taken, and writes letters for what was refused, or has no room aside.
    async fn put_elsewhere(
        &mut self,
        batch: &Arc<Batch>,
        written: &mut Written,
    ) -> Result<(), Failure> {
        for it in &written.not_taken {
            if let Some(why) = &it.why {
                self.health.dsp_fails(it.dsp_id, why);
            }
        }
        if !written.not_taken.is_empty()
            && let Some(aside) = self.aside.clone()
        {
            let what = written.not_taken.iter();
            let what = what.map(|it| (it.dsp_id, it.indices.clone())).collect();
            // A disk that hangs there holds up all, and is reported as the store is.
            let store = Arc::clone(&self.store);
            let is_expected = move |dsp_id| store.is_expected(dsp_id);
            let put = async { Ok(aside.put(batch, what, is_expected).await) };
            let put = self.patiently(put.boxed()).await;
            self.note(put.as_ref().err())?;
            let no_room = put.unwrap_or_default();
            let refused: HashSet<u32> = no_room.iter().map(|it| it.index).collect();
            for it in &mut written.not_taken {
                it.indices.retain(|index| !refused.contains(index));
            }
            written.rejected.extend(no_room);
        }
        let rejected = written.rejected.clone();
        self.dead_letters.write(batch, rejected).await;
        Ok(())
    }

    /// Counts a batch that is durable.
    fn stored(&self, done: &Done) {
        let (batch, metrics) = (&done.batch, &self.metrics);
        let now = unix_micros();
        let stale = done.written.stale.len() as u64;
        let rejected = done.written.rejected.len() as u64;
        let not_taken = done.written.not_taken.iter();
        let set_aside = not_taken.map(|it| it.indices.len() as u64).sum();
        let written = batch.len() as u64 - stale - rejected - set_aside;
        metrics.ledger.settled(&Settled {
            counts: batch.counts(),
            written,
            stale,
            rejected,
            set_aside,
        });
        metrics.batches.inc();
        let took = done.began.elapsed();
        metrics.flush_seconds.observe(took.as_secs_f64());
        let cookies = u32::try_from(batch.len()).unwrap_or(u32::MAX);
        metrics.batch_cookies.observe(f64::from(cookies));
        for (accepted, cookies) in batch.accepted() {
            let age = Duration::from_micros(now.saturating_sub(accepted));
            metrics.stored_seconds.observe(age, cookies);
        }
        let producers = self.health.producers();
        producers.committed(batch.cursors(), batch.losses());
        for end in batch.goodbyes() {
            metrics.goodbyes.inc();
            let (producer, epoch, final_sequence) = (&*end.producer, end.epoch, end.sequence);
            tracing::info!(
                producer,
                epoch,
                final_sequence,
                "producer said goodbye and all it sent is stored"
            );
        }
        tracing::debug!(cookies, ?took, stale, rejected, set_aside, "batch stored");
    }

    /// Lets the suppression table know what was stored, in parts: so that neither the collector waits for long for the
    /// table, nor other tasks for this one. On the task itself and not on a thread for blocking work: the order of
    /// events then depends on nothing but the runtime, and a simulation can repeat it.
    async fn record(&self, batch: &Batch, written: &Written) {
        for first in (0..batch.len()).step_by(RECORDED_AT_ONCE) {
            lock(&self.suppression).record(batch, written, first, RECORDED_AT_ONCE);
            yield_now().await;
        }
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
            let answer = self.unless_stopped(ask(&*store)).await?;
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

    /// Waits patiently, but not when told to stop.
    async fn unless_stopped<T>(
        &mut self,
        asked: Answer<'_, T>,
    ) -> Result<Result<T, StoreError>, Failure> {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => Err(Failure::Stopped),
            answer = self.patiently(asked) => Ok(answer),
        }
    }

    /// Reports the store as failing when it does not answer soon, and as in need of a restart when it seems to hang; and
    /// waits on.
    async fn patiently<T>(&mut self, mut asked: Answer<'_, T>) -> Result<T, StoreError> {
        if let Ok(answer) = timeout(PATIENCE, &mut asked).await {
            return answer;
        }
        self.is_failing(format!("no answer for {PATIENCE:?}"));
        if let Some(hangs_after) = self.store.hangs_after() {
            if let Ok(answer) = timeout(hangs_after.saturating_sub(PATIENCE), &mut asked).await {
                return answer;
            }
            let why = format!(
                "no answer for {hangs_after:?}: it hangs, and may go on only after a restart"
            );
            tracing::error!(why, "the store hangs, waiting on");
            self.health.store_needs_restart(why);
        }
        asked.await
    }

    fn is_failing(&mut self, why: String) {
        self.metrics.store_up.set(0);
        if self.reasons.len() < REASONS_MAX && !self.reasons.contains(&why) {
            tracing::warn!(why, "the store does not work, trying on");
            self.reasons.push(why.clone());
        }
        self.health.store_fails(why);
    }

    /// Takes note of how an attempt ended; an error only when none can ever succeed.
    fn note(&mut self, error: Option<&StoreError>) -> Result<(), Failure> {
        let Some(error) = error else {
            if !self.reasons.is_empty() {
                tracing::info!("the store works again");
            }
            self.reasons.clear();
            self.health.store_works();
            self.metrics.store_up.set(1);
            return Ok(());
        };
        self.metrics.store_errors.inc();
        self.is_failing(error.to_string());
        match error {
            StoreError::Unavailable(_) => Ok(()),
            StoreError::Broken(why) => {
                self.health.store_needs_restart(why.clone());
                Err(Failure::Broken(why.clone()))
            }
        }
    }
}
