//! Tries the cookies that were set aside again, DSP by DSP, until the store has them.
//!
//! A DSP that is new is tried at once, at the pace at which slots are made; one that fails, after delays that grow to half
//! a minute. What is set aside of one that the operator refuses, or has expired, becomes dead letters instead. Each has at
//! most one try at a time, and a few DSPs are tried at once, so that none that hangs holds up the others for long.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use runtime::unix_micros;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{RetryQueue, unpack};
use crate::{
    backoff::Backoff,
    batch::Batch,
    dead_letters::DeadLetters,
    health::Health,
    ledger::LedgerCounts,
    store::{RejectedCookie, Store, StoreError, WriteOutcome},
    ttl::Ttls,
};

/// DSPs that are tried at the same time.
const CONCURRENT_DSPS_MAX: usize = 16;

/// How often in a row one DSP is tried before others that wait have their turn: more may come as fast as it is written.
const ATTEMPTS_IN_A_ROW_MAX: usize = 8;

/// The delays from one try of a DSP to the next.
fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(500), Duration::from_secs(30))
}

/// How often it is looked for DSPs that are due.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Slots that are made one right after the other, and then how many a second: a new database keeps mongod from other
/// work for some milliseconds.
const NEW_SLOTS: (f64, f64) = (32.0, 5.0);

/// The task that tries again.
#[derive(Debug)]
pub struct Retrier {
    retry_queue: RetryQueue,
    store: Arc<dyn Store>,
    health: Arc<Health>,
    dead_letters: DeadLetters,
    refused: watch::Receiver<BTreeSet<u32>>,
    ttls: Ttls,
}

/// When a DSP is tried next.
#[derive(Debug)]
struct Due {
    at: Instant,
    backoff: Backoff,
}

impl Due {
    fn at(at: Instant) -> Self {
        Self {
            at,
            backoff: backoff(),
        }
    }
}

/// What came of trying a DSP.
type RetryResult = (u32, Result<(), StoreError>);

impl Retrier {
    /// What is in `retry_queue` into `store`.
    #[must_use]
    pub fn new(
        retry_queue: RetryQueue,
        store: Arc<dyn Store>,
        health: Arc<Health>,
        dead_letters: DeadLetters,
        refused: watch::Receiver<BTreeSet<u32>>,
        ttls: Ttls,
    ) -> Self {
        Self {
            retry_queue,
            store,
            health,
            dead_letters,
            refused,
            ttls,
        }
    }

    /// Tries until `stop` is cancelled; what is set aside then is tried after the next start.
    pub async fn run(self, stop: CancellationToken) {
        let mut dues: BTreeMap<u32, Due> = BTreeMap::new();
        let mut tried: FuturesUnordered<BoxFuture<'_, RetryResult>> = FuturesUnordered::new();
        let mut under_way = BTreeSet::new();
        let mut pace = Pace::new();
        let mut shown = BTreeSet::new();
        loop {
            let now = Instant::now();
            let mut failing: BTreeSet<u32> = self.health.failing_dsps().into_keys().collect();
            if shown != failing {
                self.retry_queue.metrics.fail(&failing);
                shown.clone_from(&failing);
            }
            failing.extend(self.retry_queue.dsps());
            dues.retain(|dsp_id, _| failing.contains(dsp_id));
            let is_idle = failing.is_empty() && tried.is_empty();
            for dsp_id in failing {
                dues.entry(dsp_id).or_insert_with(|| Due::at(now));
            }
            // Who has waited longest is first, so that no number of DSPs that fail holds up another for good.
            let due = dues.iter().filter(|(_, due)| due.at <= now);
            let mut due: Vec<_> = due.map(|(dsp_id, due)| (due.at, *dsp_id)).collect();
            due.sort_unstable();
            for (_, dsp_id) in due {
                if under_way.len() >= CONCURRENT_DSPS_MAX {
                    break;
                }
                if under_way.contains(&dsp_id) {
                    continue;
                }
                if !self.store.has_slot(dsp_id) && !pace.take(now) {
                    continue;
                }
                under_way.insert(dsp_id);
                tried.push(self.retry_dsp(dsp_id).boxed());
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some((dsp_id, result)) = tried.next() => {
                    under_way.remove(&dsp_id);
                    // It had none before, so it was allowed one.
                    if !self.store.has_slot(dsp_id) {
                        pace.give_back();
                    }
                    match result {
                        Ok(()) => drop(dues.remove(&dsp_id)),
                        Err(error) => {
                            self.health.dsp_fails(dsp_id, &error.to_string());
                            let due = dues.entry(dsp_id).or_insert_with(|| Due::at(now));
                            due.at = Instant::now() + due.backoff.delay();
                        }
                    }
                }
                () = self.retry_queue.changed(), if is_idle => {}
                () = sleep_until(now + LOOK_INTERVAL), if !is_idle => {}
            }
        }
    }

    /// Why cookies are not to be tried again, if so.
    fn rejection_reason(&self, dsp_id: u32, batch: &Batch) -> Option<&'static str> {
        if self.refused.borrow().contains(&dsp_id) {
            return Some("its DSP is refused");
        }
        let newest = batch.cookies().map(|cookie| cookie.accepted_unix_micros);
        let expired_before = self.ttls.expired_before(dsp_id, unix_micros());
        (newest.max()? < expired_before).then_some("it expired in the retry queue")
    }

    /// Gives the store what is set aside of a DSP; or, if that is nothing, asks whether it could be written.
    async fn retry_dsp(&self, dsp_id: u32) -> RetryResult {
        (dsp_id, self.retry_all(dsp_id).await)
    }

    async fn retry_all(&self, dsp_id: u32) -> Result<(), StoreError> {
        let mut has_tried = false;
        for _ in 0..ATTEMPTS_IN_A_ROW_MAX {
            let entries = self.retry_queue.oldest(dsp_id);
            if entries.is_empty() {
                break;
            }
            let numbers: Vec<u64> = entries.iter().map(|entry| entry.number).collect();
            let batch = Arc::new(unpack(self.store.read_retry_entries(&numbers).await?));
            let written = match self.rejection_reason(dsp_id, &batch) {
                Some(why) => all_rejected(&batch, why),
                None => self.store.retry(dsp_id, Arc::clone(&batch)).await?,
            };
            has_tried = true;
            let (stale, rejected) = (written.stale.len() as u64, written.rejected.len() as u64);
            let (cookies, superseded) = (batch.len() as u64, batch.counts().superseded);
            let queued: u64 = entries.iter().map(|entry| entry.cookies).sum();
            let unreadable = queued.saturating_sub(cookies + superseded);
            if unreadable > 0 {
                tracing::error!(
                    dsp_id,
                    cookies = unreadable,
                    "queued cookies are unreadable and lost"
                );
            }
            self.dead_letters.write(&batch, written.rejected).await;
            self.remove(dsp_id, &numbers).await;
            self.retry_queue.done(dsp_id, entries.len());
            let outcomes = LedgerCounts {
                written: cookies - stale - rejected,
                superseded,
                stale,
                rejected,
                unreadable,
                ..LedgerCounts::default()
            };
            self.retry_queue.metrics.ledger.retried(&outcomes);
        }
        if self.refused.borrow().contains(&dsp_id) {
            self.health.dsp_works(dsp_id);
        } else if !has_tried {
            let nothing = Arc::new(Batch::new(1, 1));
            self.store.retry(dsp_id, nothing).await?;
            self.health.dsp_works(dsp_id);
        }
        Ok(())
    }

    /// Removes entries whose cookies are written or dead letters. Only the removal is repeated: if its answer was lost, there
    /// is nothing left to read and write again.
    async fn remove(&self, dsp_id: u32, numbers: &[u64]) {
        let mut backoff = backoff();
        while let Err(error) = self.store.remove_retry_entries(numbers).await {
            self.health.dsp_fails(dsp_id, &error.to_string());
            sleep(backoff.delay()).await;
        }
        self.health.dsp_works(dsp_id);
    }
}

fn all_rejected(batch: &Batch, why: &str) -> WriteOutcome {
    let indices = 0..u32::try_from(batch.len()).expect("a batch is bounded in cookies");
    let rejected = indices.map(|index| RejectedCookie {
        index,
        reason: why.to_owned(),
    });
    WriteOutcome {
        rejected: rejected.collect(),
        ..WriteOutcome::default()
    }
}

/// How many slots may be made.
#[derive(Debug)]
struct Pace {
    left: f64,
    at: Instant,
}

impl Pace {
    fn new() -> Self {
        Self {
            left: NEW_SLOTS.0,
            at: Instant::now(),
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        let (most, per_second) = NEW_SLOTS;
        let passed = (now - self.at).as_secs_f64();
        self.left = (self.left + passed * per_second).min(most);
        self.at = now;
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }

    /// Gives back what was taken for a slot that was not made.
    fn give_back(&mut self) {
        self.left = (self.left + 1.0).min(NEW_SLOTS.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slots_are_made_at_a_pace() {
        let mut pace = Pace::new();
        let mut made = |seconds: u64| {
            let now = Instant::now() + Duration::from_secs(seconds);
            (0..1000).take_while(|_| pace.take(now)).count()
        };
        assert_eq!([made(0), made(0), made(2), made(1000)], [32, 0, 10, 32]);
    }
}
