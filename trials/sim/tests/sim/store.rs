//! A store in memory with the faults of a real one: slow, unavailable, or reporting failures of writes that succeeded. A power loss
//! loses a random part of the uncommitted writes.
//!
//! The [`Disk`] outlives the incarnations of the consumer that use it through [`SimStore`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use consumer::{
    batch::{Batch, BatchCookie, Cursor},
    deletions::{Deletion, Deletions, Stored},
    store::{
        Expiry, ExpiryResult, LookupResult, Receipt, Store, StoreError, StoreFuture, StoredState,
        WriteOutcome,
    },
};
use tokio::time::sleep;

use crate::{load::Pair, loss_reports, trace};

/// How the store responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum StoreBehavior {
    /// Takes a few milliseconds.
    #[default]
    Healthy,
    /// Takes 0.2 to 2 s.
    Slow,
    /// Fails every operation.
    Failing,
    /// Does not respond.
    Hanging,
    /// Executes writes and commits, but reports half of them as failed.
    FalseErrors,
}

/// The stored value of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredValue {
    pub(crate) accepted_unix_micros: u64,
    /// Number of the sync, from the buyer uid.
    pub(crate) number: u64,
}

/// The disk and the volatile state of one consumer's store.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Committed values.
    pub(crate) durable: BTreeMap<Pair, StoredValue>,
    /// Uncommitted values.
    volatile: BTreeMap<Pair, StoredValue>,
    /// Committed cursors.
    pub(crate) cursors: BTreeMap<Arc<str>, Cursor>,
    /// Epoch of the first committed cursor of each producer.
    pub(crate) first_epochs: BTreeMap<Arc<str>, u64>,
    /// Producers and epochs with a committed goodbye.
    pub(crate) completed: BTreeSet<(Arc<str>, u64)>,
    /// Deletions, and whether each is committed.
    deletions: Vec<(Deletion, bool)>,
    /// Numbers of all syncs that were ever written.
    pub(crate) received: BTreeSet<u64>,
    /// Cookies that no browser sent.
    pub(crate) foreign: Vec<String>,
    pub(crate) behavior: StoreBehavior,
    /// Number of power losses.
    generation: u64,
    random: fastrand::Rng,
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            durable: BTreeMap::new(),
            volatile: BTreeMap::new(),
            cursors: BTreeMap::new(),
            first_epochs: BTreeMap::new(),
            completed: BTreeSet::new(),
            deletions: Vec::new(),
            received: BTreeSet::new(),
            foreign: Vec::new(),
            behavior: StoreBehavior::Healthy,
            generation: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Loses a random part of the uncommitted values.
    pub(crate) fn lose_power(&mut self) {
        self.generation += 1;
        let random = &mut self.random;
        self.deletions
            .retain(|(_, is_durable)| *is_durable || random.bool());
        for (pair, value) in std::mem::take(&mut self.volatile) {
            if self.random.bool() {
                self.durable.insert(pair, value);
            }
        }
    }

    /// Writes a cookie; returns false if it is stale.
    fn write(&mut self, cookie: &BatchCookie<'_>) -> bool {
        let Some((pair, number)) = parse(cookie) else {
            self.foreign.push(format!("{cookie:?}"));
            return true;
        };
        self.received.insert(number);
        let known = self.volatile.get(&pair).or_else(|| self.durable.get(&pair));
        if known.is_some_and(|known| cookie.accepted_unix_micros < known.accepted_unix_micros) {
            return false;
        }
        let value = StoredValue {
            accepted_unix_micros: cookie.accepted_unix_micros,
            number,
        };
        self.volatile.insert(pair, value);
        true
    }

    /// Stores the deletions of a batch and removes the cookies that they cover.
    fn delete(&mut self, batch: &Batch) {
        for deletion in batch.latest_deletions() {
            let user = std::str::from_utf8(&deletion.user_id).ok();
            let user = user.and_then(|user| user.strip_prefix('u')?.parse::<u64>().ok());
            let is_kept = |pair: &Pair, value: &StoredValue| {
                let is_covered = value.accepted_unix_micros <= deletion.until_unix_micros;
                Some(pair.user) != user || !deletion.concerns(pair.dsp) || !is_covered
            };
            self.volatile.retain(|pair, value| is_kept(pair, value));
            self.durable.retain(|pair, value| is_kept(pair, value));
            self.deletions.push((deletion, false));
        }
    }

    fn commit(&mut self, batch: &Batch) {
        for (_, is_committed) in &mut self.deletions {
            *is_committed = true;
        }
        for (pair, _) in batch.cookies().filter_map(|cookie| parse(&cookie)) {
            if let Some(value) = self.volatile.remove(&pair) {
                self.durable.insert(pair, value);
            }
        }
    }
}

/// Parses a cookie into its pair and the number of its sync.
fn parse(cookie: &BatchCookie<'_>) -> Option<(Pair, u64)> {
    let number = |bytes: &[u8], prefix: &str| {
        let text = std::str::from_utf8(bytes).ok()?;
        text.strip_prefix(prefix)?.parse::<u64>().ok()
    };
    let pair = Pair {
        user: number(cookie.user_id, "u")?,
        dsp: cookie.dsp_id,
    };
    Some((pair, number(cookie.buyer_uid, "b")?))
}

/// The store of one incarnation of a consumer.
#[derive(Clone)]
pub(crate) struct SimStore(pub(crate) Arc<Mutex<Disk>>);

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

impl SimStore {
    /// Discards loss reports of the previous process that were not committed: the next process reports them again.
    pub(crate) fn discard_uncommitted_reports(&self, consumer: &str) {
        let disk = self.disk();
        loss_reports::retain(consumer, |loss| {
            let cursor = disk.cursors.get(loss.producer.as_str());
            cursor.is_some_and(|cursor| (cursor.epoch, cursor.sequence) >= loss.durable_position())
        });
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delays or fails as the behavior requires; returns the current generation.
    async fn respond(&self) -> Result<u64, StoreError> {
        loop {
            let (behavior, millis) = {
                let mut disk = self.disk();
                let millis = match disk.behavior {
                    StoreBehavior::Slow => disk.random.u64(200..2_000),
                    StoreBehavior::Hanging => 100,
                    _ => disk.random.u64(0..8),
                };
                (disk.behavior, millis)
            };
            sleep(Duration::from_millis(millis)).await;
            match behavior {
                StoreBehavior::Hanging => {}
                StoreBehavior::Failing => {
                    return Err(StoreError::Unavailable("failing".to_owned()));
                }
                _ => return Ok(self.disk().generation),
            }
        }
    }

    fn reports_false_error(&self) -> bool {
        let mut disk = self.disk();
        disk.behavior == StoreBehavior::FalseErrors && disk.random.bool()
    }

    fn check(&self, generation: u64) -> Result<(), StoreError> {
        if self.disk().generation == generation {
            Ok(())
        } else {
            Err(StoreError::Unavailable("restarted".to_owned()))
        }
    }

    async fn write_parts(&self, batch: &Batch) -> Result<WriteOutcome, StoreError> {
        let generation = self.respond().await?;
        self.disk().delete(batch);
        let middle = self.disk().random.usize(0..=batch.len());
        let mut stale = Vec::new();
        for range in [0..middle, middle..batch.len()] {
            self.respond().await?;
            self.check(generation)?;
            let mut disk = self.disk();
            for at in range {
                if !disk.write(&batch.cookie(at)) {
                    stale.push(u32::try_from(at).expect("batches are small"));
                }
            }
        }
        trace::record("written", (batch.len(), stale.len()));
        if self.reports_false_error() {
            return Err(StoreError::Unavailable(
                "write reported as failed".to_owned(),
            ));
        }
        let mut receipt = Receipt::default();
        receipt.0[..8].copy_from_slice(&generation.to_be_bytes());
        Ok(WriteOutcome {
            stale,
            receipt,
            ..WriteOutcome::default()
        })
    }

    async fn commit_parts(&self, batch: &Batch, receipt: Receipt) -> Result<(), StoreError> {
        let written = receipt.0.first_chunk().copied().map(u64::from_be_bytes);
        let written = written.expect("a receipt has at least 8 bytes");
        self.respond().await?;
        self.check(written)?;
        if self.reports_false_error() {
            return Err(StoreError::Unavailable("commit failed".to_owned()));
        }
        self.disk().commit(batch);
        self.respond().await?;
        self.check(written)?;
        let mut disk = self.disk();
        for cursor in batch.cursors() {
            trace::record("committed", (&*cursor.producer, cursor.sequence));
            let first = disk.first_epochs.entry(Arc::clone(&cursor.producer));
            first.or_insert(cursor.epoch);
            disk.cursors
                .insert(Arc::clone(&cursor.producer), cursor.clone());
        }
        for end in batch.completed_epochs() {
            let incarnation = (Arc::clone(&end.producer), end.epoch);
            disk.completed.insert(incarnation);
        }
        drop(disk);
        if self.reports_false_error() {
            return Err(StoreError::Unavailable(
                "commit reported as failed".to_owned(),
            ));
        }
        Ok(())
    }
}

impl Store for SimStore {
    fn load(&self) -> StoreFuture<'_, StoredState> {
        Box::pin(async {
            self.respond().await?;
            let disk = self.disk();
            Ok(StoredState {
                cursors: disk.cursors.values().cloned().collect(),
                deletions: Stored {
                    deletions: disk.deletions.iter().map(|(it, _)| it.clone()).collect(),
                    ..Stored::default()
                },
                ..StoredState::default()
            })
        })
    }

    fn write(&self, batch: Arc<Batch>) -> StoreFuture<'_, WriteOutcome> {
        Box::pin(async move { self.write_parts(&batch).await })
    }

    fn commit<'a>(&'a self, batch: &'a Batch, receipt: Receipt) -> StoreFuture<'a, ()> {
        Box::pin(self.commit_parts(batch, receipt))
    }

    fn lookup<'a>(&'a self, _: &'a str, _: &'a Deletions) -> StoreFuture<'a, LookupResult> {
        // Checks read the disk directly.
        let reason = "lookups are not simulated".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Unavailable(reason))))
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.respond().await.map(|_| ()) })
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> StoreFuture<'a, ExpiryResult> {
        let nothing = ExpiryResult {
            deleted: 0,
            complete: true,
            ..ExpiryResult::default()
        };
        Box::pin(std::future::ready(Ok(nothing)))
    }

    fn delete_cursors_before(&self, _before: u64) -> StoreFuture<'_, Vec<Arc<str>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
