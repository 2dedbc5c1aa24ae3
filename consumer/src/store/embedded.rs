//! The embedded store: fjall, a log-structured merge tree in a local directory.
//!
//! The newest cookie of a pair wins, mostly without reads: the `recent` module determines that the store cannot have a newer
//! one. A point read is needed only for cookies of a recently written pair, and for cookies older than the horizon of that
//! module. Bloom filters in memory avoid reading the disk if the pair does not exist.
//!
//! Cookies, the acceptance time of the newest one, and cursors are written atomically, and synced before
//! [`Cookies::write`] returns. A failed sync breaks the store permanently, because the content of the disk is known only
//! after reopening it. A failure of fjall's background threads, which flush and compact, has the same effect. The next
//! ping detects this failure, even while a write waits for the threads. The removal of the directory breaks the store, too: the
//! files that are still open would be lost with the process.
//!
//! Expiry: a lookup never returns an expired cookie. Regular compactions delete expired cookies from disk, so expiry causes
//! no extra I/O. While the expiry window is open, the current time determines which cookies compactions delete. After the
//! window closes, compactions use the last time set, until the next window or restart. Compactions are proportional to
//! writes, and with evenly distributed user ids they reach all data. Without writes, expired cookies stay on disk, but
//! lookups omit them. The store never starts a full ("major") compaction, which would block all other compactions and, after
//! four flushes, the writers. So it ignores the compaction window.

mod copies;
mod estimate;
mod expiry;
mod lookup;
mod page;
mod recent;
mod records;
mod upkeep;
mod user_cache;

use std::{
    collections::BTreeSet,
    fmt::Display,
    io,
    ops::ControlFlow,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    thread,
    time::Duration,
};

use async_trait::async_trait;
use fjall::{
    Database, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
    compaction::{Leveled, filter::Factory},
};
use parking_lot::Mutex;
use proto::{
    limits::BUYER_UID_BYTES_MAX,
    newest,
    units::{DspId, UnixMicros},
};
use runtime::{open_files, unfinished_store};
use tokio::{sync::oneshot, time::sleep};

use super::{
    Cookies, Page, PageQuery, Receipt, Store, StoreError, StoredMatch, StoredState, UserMatches,
    WriteOutcome,
};
use crate::{
    batch::{Batch, BatchCookie},
    clock,
    deletions::Deletions,
    ttl::Ttls,
};
use expiry::ExpiryFilter;
use recent::RecentPairs;
use records::{
    CURSOR_PREFIX, CookieKey, LAYOUT, LAYOUT_KEY, NEWEST_KEY, SLOT_PREFIX, committed,
    decode_cursor, dsp_of, encode_cursor, put_value, slot_key, stored_cookie, time, user_prefix,
};
use user_cache::UserCache;

/// Size of the block cache.
const CACHE_BYTES: u64 = 64 << 20;

/// Maximum size of the write-ahead log before memtables are flushed.
const JOURNAL_BYTES_MAX: u64 = 512 << 20;

/// Interval of pings during a long write.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// fjall blocks a write until a full memtable is on disk. Writing 64 MiB takes this long at 2 MiB/s; a slower disk could not
/// keep up with any producer.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// A file of fjall in each store.
const FILE: &str = "version";

const COOKIES: &str = "cookies";
const META: &str = "meta";

/// A store in a local directory.
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
    /// Locked by writers.
    recent: Mutex<RecentPairs>,
    /// DSPs with cookies.
    slots: Mutex<BTreeSet<DspId>>,
    expiry: ExpiryFilter,
    users: UserCache,
    /// [`FILE`], and its inode.
    file: (PathBuf, u64),
}

/// Parameters that tests change.
#[derive(Debug, Clone, Copy)]
struct Tuning {
    /// Size of a memtable. Larger memtables mean fewer files to merge, but more memory and recovery time.
    memtable_bytes: u64,
    /// Size of a file of the tree.
    table_bytes: u64,
    /// Size of the cache of users.
    user_cache_bytes: usize,
    now: fn() -> UnixMicros,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            memtable_bytes: 64 << 20,
            table_bytes: 64 << 20,
            user_cache_bytes: 128 << 20,
            now: clock::now,
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store in `dir`. Creates the directory if it does not exist. Lookups keep up to `user_cache_bytes` of users in memory.
    ///
    /// # Errors
    /// When the directory is in use by another process, or is not a store.
    pub async fn open(dir: PathBuf, ttls: Ttls, user_cache_bytes: usize) -> anyhow::Result<Self> {
        let tuning = Tuning {
            user_cache_bytes,
            ..Tuning::default()
        };
        Self::open_with(dir, ttls, tuning).await
    }

    /// Calls `visit` for every stored cookie, including expired ones, ordered by user, until it breaks. Blocks the thread.
    ///
    /// # Errors
    /// When the store cannot be read, or has an invalid cookie.
    pub fn for_each(
        &self,
        mut visit: impl FnMut(&BatchCookie<'_>) -> ControlFlow<()>,
    ) -> anyhow::Result<()> {
        for pair in self.inner.cookies.iter() {
            let (key, value) = pair.into_inner()?;
            let cookie = stored_cookie(&key, &value)
                .ok_or_else(|| anyhow::anyhow!("invalid cookie in the store: key {key:?}"))?;
            if visit(&cookie).is_break() {
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

    /// Runs `work` on a blocking thread.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> fjall::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.inner);
        match tokio::task::spawn_blocking(move || work(&inner)).await {
            Ok(done) => done.map_err(store_error),
            Err(error) => Err(task_failed(error)),
        }
    }

    /// Runs `work` on a thread of its own, which on Linux has the lowest priority of this process.
    async fn run_with_lowest_priority<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> fjall::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (inner, (sender, done)) = (Arc::clone(&self.inner), oneshot::channel());
        let work = move || {
            // On Linux, this concerns only the calling thread, which cannot raise its priority again.
            #[cfg(target_os = "linux")]
            rustix::process::setpriority_process(None, 19).ok();
            drop(sender.send(work(&inner)));
        };
        let thread = thread::Builder::new().name("page".to_owned()).spawn(work);
        thread.map_err(|error| StoreError::Unavailable(format!("no thread: {error}")))?;
        done.await.map_err(task_failed)?.map_err(store_error)
    }

    /// The result of `work`, or an error if fjall fails while it runs.
    async fn unless_broken<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(PING_INTERVAL) => {}
            }
            self.ping().await?;
        }
    }
}

/// A store without a [`Backlog`](super::Backlog): no single DSP fails.
impl From<EmbeddedStore> for Store {
    fn from(store: EmbeddedStore) -> Self {
        let store = Arc::new(store);
        Self {
            cookies: Arc::clone(&store) as _,
            lookup: Arc::clone(&store) as _,
            backlog: None,
            copies: Arc::clone(&store) as _,
            upkeep: store,
        }
    }
}

#[async_trait]
impl Cookies for EmbeddedStore {
    async fn load(&self, deletions: &Deletions) -> Result<StoredState, StoreError> {
        let deletions = deletions.clone();
        self.run(move |inner| inner.load(&deletions)).await
    }

    async fn write(&self, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        self.unless_broken(self.run(move |inner| inner.write(&batch)))
            .await
    }

    /// [`write`](Self::write) has synced the batch.
    async fn commit(&self, _: &Batch, _: Receipt) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        // There is nothing to flush, but this returns an error if fjall has stopped.
        self.run(|inner| inner.database.persist(PersistMode::Buffer))
            .await
    }

    fn hang_timeout(&self) -> Option<Duration> {
        Some(HANGS_AFTER)
    }
}

impl Inner {
    fn open(dir: &Path, ttls: Ttls, tuning: Tuning) -> anyhow::Result<Self> {
        let path = dir.display();
        std::fs::create_dir_all(dir).map_err(|error| {
            anyhow::anyhow!("cannot create {path} ({error}); choose another directory with --store")
        })?;
        unfinished_store::remove(dir)
            .map_err(|error| anyhow::anyhow!("cannot open the store in {path}: {error}"))?;
        let expiry = ExpiryFilter::new(ttls.clone());
        let filter: Arc<dyn Factory> = Arc::new(expiry.clone());
        let database = Database::builder(dir)
            .cache_size(CACHE_BYTES)
            .max_cached_files(Some(open_files::of_store()))
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .with_compaction_filter_factories(Arc::new(move |keyspace| {
                (keyspace == COOKIES).then(|| Arc::clone(&filter))
            }))
            .open()
            .map_err(|error| match error {
                fjall::Error::Locked => anyhow::anyhow!(
                    "{path} is in use by another process; choose another directory with --store"
                ),
                error => anyhow::anyhow!("cannot open the store in {path}: {error}"),
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
            Some(_) => anyhow::bail!(
                "{path} has the format of another version of this program; choose another directory with --store"
            ),
        }
        let file = dir.join(FILE);
        let inode = file.metadata()?.ino();
        let newest = match meta.get(NEWEST_KEY)? {
            Some(newest) => time(&newest).unwrap_or(UnixMicros::MAX),
            None => UnixMicros::NONE,
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
            recent: Mutex::new(RecentPairs::new(newest)),
            slots: Mutex::new(slots),
            expiry,
            users: UserCache::new(tuning.user_cache_bytes),
            file: (file, inode),
        })
    }

    fn load(&self, deletions: &Deletions) -> fjall::Result<StoredState> {
        self.load_deletions(deletions)?;
        let mut loaded = StoredState::default();
        for pair in self.meta.prefix(CURSOR_PREFIX) {
            let (key, value) = pair.into_inner()?;
            loaded.cursors.extend(decode_cursor(&key, &value));
        }
        loaded.slots.extend(&*self.slots.lock());
        Ok(loaded)
    }

    fn write(&self, batch: &Batch) -> fjall::Result<WriteOutcome> {
        let mut recent = self.recent.lock();
        let newest = recent.newest();
        let capacity = batch.len() + batch.cursors().len() + 1;
        let mut slots = self.slots.lock();
        let mut writes = self.synced_writes(capacity);
        let mut done = WriteOutcome::default();
        let mut written = Vec::with_capacity(batch.len());
        let mut value = Vec::with_capacity(8 + BUYER_UID_BYTES_MAX);
        if !batch.deletions().is_empty() {
            self.delete(batch.deletions())?;
        }
        // In key order, which is efficient for the tree.
        for index in batch.by_user() {
            let cookie = batch.cookie(index as usize);
            let (key, accepted) = (CookieKey::new(&cookie), cookie.accepted);
            let pair = recent.pair(&cookie);
            if recent.may_have_newer(pair, accepted) && self.has_newer(key.as_slice(), accepted)? {
                done.stale.push(index);
                continue;
            }
            recent.record(pair, accepted);
            written.push(index);
            put_value(&mut value, &cookie);
            writes.insert(&self.cookies, key.as_slice(), &value);
            if slots.insert(cookie.dsp_id) {
                writes.insert(&self.meta, slot_key(cookie.dsp_id), []);
            }
        }
        for cursor in batch.cursors() {
            let (key, value) = encode_cursor(cursor, (self.tuning.now)());
            writes.insert(&self.meta, key, value);
        }
        if recent.newest() > newest {
            writes.insert(&self.meta, NEWEST_KEY, recent.newest().0.to_be_bytes());
        }
        writes.commit()?;
        self.update_users(batch, &written);
        self.check_in_place()?;
        Ok(done)
    }

    /// Fails if the directory was removed or replaced.
    fn check_in_place(&self) -> io::Result<()> {
        let (file, inode) = &self.file;
        let found = file.metadata().map(|it| it.ino());
        match found {
            Ok(found) if found == *inode => Ok(()),
            _ => Err(io::Error::other(format!(
                "{} was removed or replaced",
                file.display()
            ))),
        }
    }

    fn synced_writes(&self, capacity: usize) -> OwnedWriteBatch {
        OwnedWriteBatch::with_capacity(self.database.clone(), capacity)
            .durability(Some(PersistMode::SyncData))
    }

    fn has_newer(&self, key: &[u8], accepted: UnixMicros) -> fjall::Result<bool> {
        let stored = self.cookies.get(key)?;
        let stored = stored.as_deref().and_then(time);
        Ok(stored.is_some_and(|stored| !newest::replaces(accepted, stored)))
    }

    fn matches(&self, user_id: &[u8]) -> fjall::Result<UserMatches> {
        self.users.get_or_read(user_id, || {
            let pairs = self.cookies.prefix(user_prefix(user_id));
            let pairs: Vec<_> = pairs.map(Guard::into_inner).collect::<fjall::Result<_>>()?;
            let cookies = pairs
                .iter()
                .filter_map(|(key, value)| stored_cookie(key, value));
            Ok(cookies.map(|cookie| stored_match(&cookie)).collect())
        })
    }

    /// Updates the cache after cookies, given by their indices in the order of users, were written.
    fn update_users(&self, batch: &Batch, written: &[u32]) {
        let cookie = |index: &u32| batch.cookie(*index as usize);
        for of_user in written.chunk_by(|a, b| cookie(a).user_id == cookie(b).user_id) {
            let matches = of_user.iter().map(|index| stored_match(&cookie(index)));
            self.users.update(cookie(&of_user[0]).user_id, matches);
        }
    }

    fn delete_cursors_before(&self, before: UnixMicros) -> fjall::Result<Vec<Arc<str>>> {
        // The writers' lock prevents a commit between the read and the removal.
        let _lock = self.recent.lock();
        let mut deleted = Vec::new();
        for pair in self.meta.prefix(CURSOR_PREFIX) {
            let (key, value) = pair.into_inner()?;
            if committed(&value) < before {
                deleted.extend(decode_cursor(&key, &value).map(|cursor| cursor.producer));
                self.meta.remove(key)?;
            }
        }
        Ok(deleted)
    }
}

fn stored_match<'a>(cookie: &BatchCookie<'a>) -> StoredMatch<'a> {
    StoredMatch {
        dsp_id: cookie.dsp_id,
        accepted: cookie.accepted,
        buyer_uid: cookie.buyer_uid,
    }
}

fn task_failed(error: impl Display) -> StoreError {
    StoreError::Broken(format!("a store task failed: {error}"))
}

/// fjall stops permanently after the first failed write, so no error is temporary.
fn store_error(error: fjall::Error) -> StoreError {
    StoreError::Broken(match error {
        fjall::Error::Io(error) => format!("the embedded store failed: {error}"),
        fjall::Error::Poisoned => {
            "the embedded store stopped after a failed write; restart the consumer to reopen it"
                .to_owned()
        }
        error => format!("the embedded store failed: {error}"),
    })
}

#[cfg(test)]
mod tests;
