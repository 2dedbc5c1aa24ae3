//! Retries queued cookies per DSP until the store has them.
//!
//! A DSP is retried immediately when it first needs a retry. A failing DSP is retried with backoff, up to half a minute.
//! Queued cookies that have expired, or whose DSP the operator rejects, become dead letters. Several DSPs are retried
//! concurrently, with one attempt per DSP, so that a hanging DSP does not block the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use proto::units::DspId;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{RetryQueue, unpack};
use crate::{
    backoff::Backoff,
    batch::Batch,
    clock,
    dead_letters::DeadLetters,
    health::Health,
    ledger::LedgerCounts,
    store::{Backlog, RejectedCookie, StoreError, WriteOutcome},
    ttl::Ttls,
};

/// Maximum number of concurrently retried DSPs.
const CONCURRENT_DSPS_MAX: usize = 16;

/// Maximum number of consecutive retries of one DSP before other DSPs are served: its queue may grow as fast as it is
/// written.
const ATTEMPTS_IN_A_ROW_MAX: usize = 8;

/// Delays between attempts of a DSP.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(500), Duration::from_secs(30))
}

/// Interval of checks for due DSPs.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The task that retries queued cookies.
#[derive(Debug)]
pub struct Retrier {
    pub(crate) retry_queue: RetryQueue,
    pub(crate) backlog: Arc<dyn Backlog>,
    pub(crate) health: Arc<Health>,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) rejected_dsps: watch::Receiver<BTreeSet<DspId>>,
    pub(crate) ttls: Ttls,
}

impl Retrier {
    /// Retries until `stop` is cancelled. Remaining cookies are retried after the next start.
    pub async fn run(self, stop: CancellationToken) {
        let this = &self;
        // The time and the delays of the next attempt.
        let mut next: BTreeMap<DspId, (Instant, Backoff)> = BTreeMap::new();
        let mut attempts = FuturesUnordered::new();
        let mut in_progress = BTreeSet::new();
        loop {
            let now = Instant::now();
            let mut pending: BTreeSet<DspId> = self.health.failing_dsps().into_keys().collect();
            pending.extend(self.retry_queue.dsps());
            next.retain(|dsp_id, _| pending.contains(dsp_id));
            let is_idle = pending.is_empty() && attempts.is_empty();
            for dsp_id in pending {
                next.entry(dsp_id).or_insert_with(|| (now, backoff()));
            }
            // Longest overdue first, so that many failing DSPs cannot starve the others.
            let due = next.iter().filter(|(_, (at, _))| *at <= now);
            let mut due: Vec<_> = due.map(|(dsp_id, (at, _))| (*at, *dsp_id)).collect();
            due.sort_unstable();
            for (_, dsp_id) in due {
                if in_progress.len() >= CONCURRENT_DSPS_MAX {
                    break;
                }
                if in_progress.contains(&dsp_id) {
                    continue;
                }
                in_progress.insert(dsp_id);
                let attempt = async move { (dsp_id, this.retry_dsp(dsp_id).await) };
                attempts.push(attempt.boxed());
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some((dsp_id, result)) = attempts.next() => {
                    in_progress.remove(&dsp_id);
                    match result {
                        Ok(()) => drop(next.remove(&dsp_id)),
                        Err(error) => {
                            self.health.set_dsp_failing(dsp_id, &error.to_string());
                            let (at, backoff) = next.entry(dsp_id).or_insert_with(|| (now, backoff()));
                            *at = Instant::now() + backoff.delay();
                        }
                    }
                }
                () = self.retry_queue.changed(), if is_idle => {}
                () = sleep_until(now + POLL_INTERVAL), if !is_idle => {}
            }
        }
    }

    /// Why cookies must not be retried; `None` if they may be.
    fn rejection_reason(&self, dsp_id: DspId, batch: &Batch) -> Option<&'static str> {
        if self.rejected_dsps.borrow().contains(&dsp_id) {
            return Some("the cookie's DSP is rejected");
        }
        let newest = batch.cookies().map(|cookie| cookie.accepted);
        let expired_before = self.ttls.expired_before(dsp_id, clock::now());
        (newest.max()? < expired_before).then_some("the cookie expired in the retry queue")
    }

    /// Retries the queued cookies of a DSP. If none are queued, checks whether its database is writable.
    async fn retry_dsp(&self, dsp_id: DspId) -> Result<(), StoreError> {
        let mut has_retried = false;
        for _ in 0..ATTEMPTS_IN_A_ROW_MAX {
            let entries = self.retry_queue.oldest(dsp_id);
            if entries.is_empty() {
                break;
            }
            let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
            let mut batch = unpack(self.backlog.read_retry_entries(&numbers).await?);
            batch.remove_deleted(&self.retry_queue.deletions);
            let batch = Arc::new(batch);
            let written = match self.rejection_reason(dsp_id, &batch) {
                Some(why) => {
                    if !batch.deletions().is_empty() {
                        let deletions = Arc::new(batch.only_deletions());
                        self.backlog.retry(dsp_id, deletions).await?;
                    }
                    all_rejected(&batch, why)
                }
                None => self.backlog.retry(dsp_id, Arc::clone(&batch)).await?,
            };
            has_retried = true;
            let (counts, stored) = (batch.counts(), written.counts(batch.len()));
            let (cookies, superseded) = (batch.len() as u64, counts.superseded);
            let queued: u64 = entries.iter().map(|entry| entry.cookies).sum();
            let unreadable =
                queued.saturating_sub(cookies + superseded + counts.deleted_on_arrival);
            if unreadable > 0 {
                tracing::error!(
                    dsp_id = dsp_id.0,
                    cookies = unreadable,
                    "queued cookies are unreadable and lost"
                );
            }
            self.dead_letters.write(&batch, written.rejected).await;
            self.remove(dsp_id, &numbers).await;
            self.retry_queue.remove_oldest(dsp_id, entries.len());
            let outcomes = LedgerCounts {
                superseded,
                unreadable,
                deleted_on_arrival: counts.deleted_on_arrival,
                ..stored
            };
            self.retry_queue.metrics.ledger.retried(&outcomes);
        }
        if self.rejected_dsps.borrow().contains(&dsp_id) {
            self.health.set_dsp_available(dsp_id);
        } else if !has_retried {
            let empty = Arc::new(Batch::new(1, 1));
            self.backlog.retry(dsp_id, empty).await?;
            self.health.set_dsp_available(dsp_id);
        }
        Ok(())
    }

    /// Removes entries whose cookies are stored or dead letters. Repeats only the removal: if its response was lost, the
    /// entries cannot be read again.
    async fn remove(&self, dsp_id: DspId, numbers: &[u64]) {
        let mut backoff = backoff();
        while let Err(error) = self.backlog.remove_retry_entries(numbers).await {
            self.health.set_dsp_failing(dsp_id, &error.to_string());
            sleep(backoff.delay()).await;
        }
        self.health.set_dsp_available(dsp_id);
    }
}

fn all_rejected(batch: &Batch, why: &str) -> WriteOutcome {
    let indices = 0..u32::try_from(batch.len()).expect("the size of a batch is bounded");
    let rejected = indices.map(|index| RejectedCookie {
        index,
        reason: why.to_owned(),
    });
    WriteOutcome {
        rejected: rejected.collect(),
        ..WriteOutcome::default()
    }
}
