//! A store in memory that behaves as badly as a real one may: slow, away for a while, failing after it has
//! written; and what was written but not committed is lost in any part when its machine loses power.
//!
//! The [`Disk`] belongs to the world and outlives the consumer that opened it as [`SimStore`].

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use consumer::{
    batch::{Batch, BatchCookie, Cursor},
    store::{
        Answer, Expired, Expiry, LookupResult, Receipt, Store, StoreError, StoredState,
        WriteOutcome,
    },
};
use tokio::time::sleep;

use crate::{load::Pair, loss_reports, trace};

/// How the store is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mood {
    /// A few milliseconds for everything.
    #[default]
    Well,
    /// Seconds for every batch.
    Slow,
    /// Refuses everything.
    Refusing,
    /// Answers nothing.
    Hanging,
    /// Writes and commits, and reports half of both as failed.
    Lying,
}

/// What a store has of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) accepted_unix_micros: u64,
    /// The number in the buyer uid.
    pub(crate) number: u64,
}

/// The disk of one consumer's store, and the memory of the process that serves it.
#[derive(Debug)]
pub(crate) struct Disk {
    /// What no failure takes away.
    pub(crate) durable: BTreeMap<Pair, Value>,
    /// What was written and not committed.
    volatile: BTreeMap<Pair, Value>,
    /// Durable as well.
    pub(crate) cursors: BTreeMap<Arc<str>, Cursor>,
    /// Of each producer, the incarnation that a cursor was of first.
    pub(crate) first_epochs: BTreeMap<Arc<str>, u64>,
    /// Epochs of producers whose goodbye was ever durable: producer and epoch.
    pub(crate) completed: BTreeSet<(Arc<str>, u64)>,
    /// Every number that was ever written.
    pub(crate) seen: BTreeSet<u64>,
    /// Cookies nobody can have sent.
    pub(crate) foreign: Vec<String>,
    pub(crate) mood: Mood,
    /// How often it lost what was volatile.
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
            seen: BTreeSet::new(),
            foreign: Vec::new(),
            mood: Mood::Well,
            generation: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Loses any part of what was not committed.
    pub(crate) fn lose_power(&mut self) {
        self.generation += 1;
        for (pair, value) in std::mem::take(&mut self.volatile) {
            if self.random.bool() {
                self.durable.insert(pair, value);
            }
        }
    }

    fn take(&mut self, cookie: &BatchCookie<'_>) -> bool {
        let Some((pair, number)) = read(cookie) else {
            self.foreign.push(format!("{cookie:?}"));
            return true;
        };
        self.seen.insert(number);
        let known = self.volatile.get(&pair).or_else(|| self.durable.get(&pair));
        if known.is_some_and(|known| cookie.accepted_unix_micros < known.accepted_unix_micros) {
            return false;
        }
        let value = Value {
            accepted_unix_micros: cookie.accepted_unix_micros,
            number,
        };
        self.volatile.insert(pair, value);
        true
    }

    fn harden(&mut self, batch: &Batch) {
        for (pair, _) in batch.cookies().filter_map(|cookie| read(&cookie)) {
            if let Some(value) = self.volatile.remove(&pair) {
                self.durable.insert(pair, value);
            }
        }
    }
}

fn read(cookie: &BatchCookie<'_>) -> Option<(Pair, u64)> {
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
    /// Forgets what a process that is gone said and had not made durable: the next one says it again.
    pub(crate) fn forget_unsure(&self, consumer: &str) {
        let disk = self.disk();
        loss_reports::retain(consumer, |loss| {
            let cursor = disk.cursors.get(loss.producer.as_str());
            cursor.is_some_and(|cursor| (cursor.epoch, cursor.sequence) >= loss.is_passed_at())
        });
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes its time, and says which generation answers.
    async fn work(&self) -> Result<u64, StoreError> {
        loop {
            let (mood, millis) = {
                let mut disk = self.disk();
                let millis = match disk.mood {
                    Mood::Slow => disk.random.u64(200..2_000),
                    Mood::Hanging => 100,
                    _ => disk.random.u64(0..8),
                };
                (disk.mood, millis)
            };
            sleep(Duration::from_millis(millis)).await;
            match mood {
                Mood::Hanging => {}
                Mood::Refusing => return Err(StoreError::Unavailable("refused".to_owned())),
                _ => return Ok(self.disk().generation),
            }
        }
    }

    fn lies(&self) -> bool {
        let mut disk = self.disk();
        disk.mood == Mood::Lying && disk.random.bool()
    }

    fn check(&self, generation: u64) -> Result<(), StoreError> {
        if self.disk().generation == generation {
            Ok(())
        } else {
            Err(StoreError::Unavailable("started anew".to_owned()))
        }
    }

    async fn write_parts(&self, batch: &Batch) -> Result<WriteOutcome, StoreError> {
        let generation = self.work().await?;
        let middle = self.disk().random.usize(0..=batch.len());
        let mut stale = Vec::new();
        for part in [0..middle, middle..batch.len()] {
            self.work().await?;
            self.check(generation)?;
            let mut disk = self.disk();
            for at in part {
                if !disk.take(&batch.cookie(at)) {
                    stale.push(u32::try_from(at).expect("batches are small"));
                }
            }
        }
        trace::note("written", (batch.len(), stale.len()));
        if self.lies() {
            return Err(StoreError::Unavailable("written, but not sure".to_owned()));
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
        let written = written.expect("a receipt is longer");
        self.work().await?;
        self.check(written)?;
        if self.lies() {
            return Err(StoreError::Unavailable("not committed".to_owned()));
        }
        self.disk().harden(batch);
        self.work().await?;
        self.check(written)?;
        let mut disk = self.disk();
        for cursor in batch.cursors() {
            trace::note("committed", (&*cursor.producer, cursor.sequence));
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
        if self.lies() {
            return Err(StoreError::Unavailable("committed, not sure".to_owned()));
        }
        Ok(())
    }
}

impl Store for SimStore {
    fn load(&self) -> Answer<'_, StoredState> {
        Box::pin(async {
            self.work().await?;
            let disk = self.disk();
            Ok(StoredState {
                cursors: disk.cursors.values().cloned().collect(),
                ..StoredState::default()
            })
        })
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        Box::pin(async move { self.write_parts(&batch).await })
    }

    fn commit<'a>(&'a self, batch: &'a Batch, receipt: Receipt) -> Answer<'a, ()> {
        Box::pin(self.commit_parts(batch, receipt))
    }

    fn lookup<'a>(&'a self, _user_id: &'a str) -> Answer<'a, LookupResult> {
        // Nobody asks here: what is stored is read from the disk.
        let why = "this store is not for reading".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Unavailable(why))))
    }

    fn ping(&self) -> Answer<'_, ()> {
        Box::pin(async { self.work().await.map(|_| ()) })
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> Answer<'a, Expired> {
        let nothing = Expired {
            deleted: 0,
            complete: true,
            ..Expired::default()
        };
        Box::pin(std::future::ready(Ok(nothing)))
    }

    fn delete_cursors_before(&self, _before: u64) -> Answer<'_, Vec<Arc<str>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
