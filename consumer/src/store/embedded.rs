//! The embedded store: fjall, a log-structured tree in one directory of this machine.
//!
//! Newest wins mostly without reading: the `recent` module knows of most cookies that nothing newer can be stored. Only
//! cookies of a pair written lately, or older than what is remembered, cost a point read, which the Bloom
//! filters answer in memory when there is nothing.
//!
//! Data, the newest time and the cursors are one atomic write, synced to the disk before [`Store::write`] returns. A
//! failed sync breaks the store for good: what the disk then holds is known only after opening it again. So does a failure of
//! fjall's threads, which flush and compact: found by the next ping, or by a write that waits for them and would wait for
//! ever.
//!
//! Expiry: a lookup never returns a cookie older than the time to live. From the disk an expired cookie goes when
//! a compaction that runs anyway comes across it, so expiry adds no work by day or night. An open expiry window
//! moves the time at which compactions look forward; when it closes, that time stays where it is until the
//! next night or restart. Compactions run in proportion to what is written, and with user ids that are spread evenly they come across
//! all data; but where nothing is written, nothing is compacted either: expired cookies then stay on the disk,
//! unseen. A full ("major") compaction is never started: it would hold up all others, and after four flushes
//! the writers with them. So there is nothing to do in the compaction window.

mod expiry;
mod recent;
mod records;

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
    compaction::{Leveled, filter::Factory},
};
use proto::{limits::BUYER_UID_BYTES_MAX, newest};
use runtime::{unfinished_store, unix_micros};
use tokio::time::sleep;

use super::{Answer, Expired, LookupResult, Store, StoreError, StoredState, WriteOutcome};
use crate::{
    batch::{Batch, BatchCookie},
    ttl::Ttls,
};
use expiry::Expiry;
use recent::Recent;
use records::{
    CURSOR_PREFIX, CookieKey, LAYOUT, LAYOUT_KEY, NEWEST_KEY, SLOT_PREFIX, be_u64, committed,
    decode_cursor, dsp_of, encode_cursor, put_value, slot_key, stored_cookie, user_prefix,
};

/// Bytes of blocks kept in memory for reading.
const CACHE_BYTES: u64 = 64 << 20;

/// Bytes of write-ahead log before memory is forced out to files.
const JOURNAL_BYTES_MAX: u64 = 512 << 20;

/// How often a write that takes long looks whether fjall still works.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// fjall holds a write up until a full memtable is on the disk. 64 MiB take that long at 2 MiB/s: a disk that is slower
/// than that keeps up with no producer.
const HANGS_AFTER: Duration = Duration::from_secs(30);

const COOKIES: &str = "cookies";
const META: &str = "meta";

/// Cookies in a directory.
#[derive(Debug)]
pub struct EmbeddedStore {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    cookies: Keyspace,
    meta: Keyspace,
    ttls: Ttls,
    tuning: Tuning,
    /// Held by anyone who writes.
    recent: Mutex<Recent>,
    /// DSPs that have cookies here.
    slots: Mutex<BTreeSet<u32>>,
    expiry: Expiry,
}

/// What tests set to other values.
#[derive(Debug, Clone, Copy)]
struct Tuning {
    /// Bytes written to memory before they become a file: fewer files to merge, against memory and recovery
    /// time.
    memtable_bytes: u64,
    /// Bytes of a file of the tree.
    table_bytes: u64,
    now_unix_micros: fn() -> u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            memtable_bytes: 64 << 20,
            table_bytes: 64 << 20,
            now_unix_micros: unix_micros,
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store in `dir`, which is created if need be.
    ///
    /// # Errors
    /// When the directory is in use by another process, or holds something else.
    pub async fn open(dir: PathBuf, ttls: Ttls) -> anyhow::Result<Self> {
        Self::open_with(dir, ttls, Tuning::default()).await
    }

    /// Shows every cookie that is stored, ordered by user, whether it has expired or not, until `show` has seen enough.
    /// Blocks meanwhile.
    ///
    /// # Errors
    /// When the store cannot be read, or what lies there is no cookie.
    pub fn for_each(
        &self,
        mut show: impl FnMut(&BatchCookie<'_>) -> ControlFlow<()>,
    ) -> anyhow::Result<()> {
        for pair in self.inner.cookies.iter() {
            let (key, value) = pair.into_inner()?;
            let cookie = stored_cookie(&key, &value)
                .ok_or_else(|| anyhow::anyhow!("the store holds what is not a cookie: {key:?}"))?;
            if show(&cookie).is_break() {
                break;
            }
        }
        Ok(())
    }

    async fn open_with(dir: PathBuf, ttls: Ttls, tuning: Tuning) -> anyhow::Result<Self> {
        let opened = tokio::task::spawn_blocking(move || Inner::open(&dir, ttls, tuning)).await?;
        Ok(Self {
            inner: Arc::new(opened?),
        })
    }

    /// Runs `work` where it may block.
    fn run<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Inner) -> fjall::Result<T> + Send + 'static,
    ) -> Answer<'a, T> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || work(&inner)).await {
                Ok(done) => done.map_err(store_error),
                Err(error) => Err(StoreError::Broken(format!("a task failed: {error}"))),
            }
        })
    }

    /// What `work` comes to, unless fjall stops for good meanwhile.
    async fn while_it_works<T>(&self, mut work: Answer<'_, T>) -> Result<T, StoreError> {
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(LOOK_INTERVAL) => {}
            }
            self.ping().await?;
        }
    }
}

impl Store for EmbeddedStore {
    fn load(&self) -> Answer<'_, StoredState> {
        self.run(Inner::load)
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        let writing = self.run(move |inner| inner.write(&batch));
        Box::pin(self.while_it_works(writing))
    }

    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, LookupResult> {
        let user_id = user_id.to_owned();
        self.run(move |inner| inner.lookup(&user_id))
    }

    fn ping(&self) -> Answer<'_, ()> {
        // Nothing waits to be handed to the system; but this tells when fjall has stopped.
        self.run(|inner| inner.database.persist(PersistMode::Buffer))
    }

    fn hang_timeout(&self) -> Option<Duration> {
        Some(HANGS_AFTER)
    }

    fn expire<'a>(&'a self, expiry: super::Expiry<'a>) -> Answer<'a, Expired> {
        if expiry.open {
            self.inner.expiry.set_now(expiry.now);
        }
        let expired = Expired {
            deleted: self.inner.expiry.take_removed(),
            complete: true,
            ..Expired::default()
        };
        Box::pin(std::future::ready(Ok(expired)))
    }

    fn delete_cursors_before(&self, before: u64) -> Answer<'_, Vec<Arc<str>>> {
        self.run(move |inner| inner.delete_cursors_before(before))
    }
}

impl Inner {
    fn open(dir: &Path, ttls: Ttls, tuning: Tuning) -> anyhow::Result<Self> {
        let place = dir.display();
        std::fs::create_dir_all(dir).map_err(|error| {
            anyhow::anyhow!(
                "cannot create {place} ({error}); choose another directory with --store"
            )
        })?;
        unfinished_store::remove(dir)
            .map_err(|error| anyhow::anyhow!("cannot open the store in {place}: {error}"))?;
        let expiry = Expiry::new(ttls.clone());
        let filter: Arc<dyn Factory> = Arc::new(expiry.clone());
        let database = Database::builder(dir)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .with_compaction_filter_factories(Arc::new(move |keyspace| {
                (keyspace == COOKIES).then(|| Arc::clone(&filter))
            }))
            .open()
            .map_err(|error| match error {
                fjall::Error::Locked => anyhow::anyhow!(
                    "{place} is in use by another process; choose another directory with --store"
                ),
                error => anyhow::anyhow!("cannot open the store in {place}: {error}"),
            })?;
        let cookies = database.keyspace(COOKIES, || {
            let strategy = Leveled::default().with_table_target_size(tuning.table_bytes);
            KeyspaceCreateOptions::default()
                .max_memtable_size(tuning.memtable_bytes)
                .compaction_strategy(Arc::new(strategy))
        })?;
        let meta = database.keyspace(META, KeyspaceCreateOptions::default)?;
        match meta.get(LAYOUT_KEY)? {
            None => meta.insert(LAYOUT_KEY, LAYOUT)?,
            Some(layout) if *layout == *LAYOUT => {}
            Some(_) => anyhow::bail!("{place} was written by another version of this program"),
        }
        let newest = match meta.get(NEWEST_KEY)? {
            Some(newest) => be_u64(&newest).unwrap_or(u64::MAX),
            None => 0,
        };
        let mut slots = BTreeSet::new();
        for pair in meta.prefix(SLOT_PREFIX) {
            slots.extend(dsp_of(&pair.key()?));
        }
        Ok(Self {
            database,
            cookies,
            meta,
            ttls,
            tuning,
            recent: Mutex::new(Recent::new(newest)),
            slots: Mutex::new(slots),
            expiry,
        })
    }

    fn load(&self) -> fjall::Result<StoredState> {
        let mut loaded = StoredState::default();
        for pair in self.meta.prefix(CURSOR_PREFIX) {
            let (key, value) = pair.into_inner()?;
            loaded.cursors.extend(decode_cursor(&key, &value));
        }
        loaded.slots.extend(&*self.slots());
        Ok(loaded)
    }

    fn write(&self, batch: &Batch) -> fjall::Result<WriteOutcome> {
        let mut recent = self.recent();
        let newest = recent.newest();
        let capacity = batch.len() + batch.cursors().len() + 1;
        let mut slots = self.slots();
        let mut writes = OwnedWriteBatch::with_capacity(self.database.clone(), capacity)
            .durability(Some(PersistMode::SyncData));
        let mut done = WriteOutcome::default();
        let mut value = Vec::with_capacity(8 + BUYER_UID_BYTES_MAX);
        // In key order, neighbours in the tree are neighbours in memory.
        for index in batch.by_user() {
            let cookie = batch.cookie(index as usize);
            let (key, accepted) = (CookieKey::new(&cookie), cookie.accepted_unix_micros);
            let pair = recent.pair(&cookie);
            if recent.may_have_newer(pair, accepted) && self.has_newer(key.as_slice(), accepted)? {
                done.stale.push(index);
                continue;
            }
            recent.written(pair, accepted);
            put_value(&mut value, &cookie);
            writes.insert(&self.cookies, key.as_slice(), &value);
            if slots.insert(cookie.dsp_id) {
                writes.insert(&self.meta, slot_key(cookie.dsp_id), []);
            }
        }
        for cursor in batch.cursors() {
            let (key, value) = encode_cursor(cursor, (self.tuning.now_unix_micros)());
            writes.insert(&self.meta, key, value);
        }
        if recent.newest() > newest {
            writes.insert(&self.meta, NEWEST_KEY, recent.newest().to_be_bytes());
        }
        writes.commit()?;
        Ok(done)
    }

    fn has_newer(&self, key: &[u8], accepted: u64) -> fjall::Result<bool> {
        let stored = self.cookies.get(key)?;
        let stored = stored.as_deref().and_then(be_u64);
        Ok(stored.is_some_and(|stored| !newest::replaces(accepted, stored)))
    }

    fn lookup(&self, user_id: &str) -> fjall::Result<LookupResult> {
        let now = (self.tuning.now_unix_micros)();
        let mut found = LookupResult::default();
        for pair in self.cookies.prefix(user_prefix(user_id)) {
            let (key, value) = pair.into_inner()?;
            let (Some(dsp_id), Some(accepted), Some(buyer_uid)) =
                (dsp_of(&key), be_u64(&value), value.get(8..))
            else {
                continue;
            };
            if accepted < self.ttls.expired_before(dsp_id, now) {
                continue;
            }
            let buyer_uid = String::from_utf8_lossy(buyer_uid).into_owned();
            found.buyer_uids.insert(dsp_id, buyer_uid);
        }
        Ok(found)
    }

    fn delete_cursors_before(&self, before: u64) -> fjall::Result<Vec<Arc<str>>> {
        // No cursor is committed between the look and the removal.
        let _writing = self.recent();
        let mut forgotten = Vec::new();
        for pair in self.meta.prefix(CURSOR_PREFIX) {
            let (key, value) = pair.into_inner()?;
            if committed(&value) < before {
                forgotten.extend(decode_cursor(&key, &value).map(|cursor| cursor.producer));
                self.meta.remove(key)?;
            }
        }
        Ok(forgotten)
    }

    fn slots(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// fjall stops for good after the first failed write: nothing here is worth a retry.
fn store_error(error: fjall::Error) -> StoreError {
    StoreError::Broken(match error {
        fjall::Error::Io(error) => format!("the embedded store failed: {error}"),
        fjall::Error::Poisoned => {
            "the embedded store stopped after a failed write; it is whole again when opened anew"
                .to_owned()
        }
        error => format!("the embedded store failed: {error}"),
    })
}

#[cfg(test)]
mod tests;
