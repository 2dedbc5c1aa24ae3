//! The interface of stores, and its implementations.
//!
//! The roles of a [`Store`] are those of its callers: the sink writes [`Cookies`], HTTP requests use [`Lookup`], the retry
//! queue uses [`Backlog`], maintenance uses [`Upkeep`], and nodes that are filled from others use [`Copies`].

pub mod embedded;
pub mod mongodb;
mod user_matches;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use proto::units::{DspId, UnixMicros};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::user_matches::{MATCH_BYTES_MAX, StoredMatch, UserMatches};

use crate::{
    batch::{Batch, Cursor},
    clock::{self, Clock},
    copy::protocol::CopyPage,
    deletions::{Deletions, DspDeletion},
    ledger::LedgerCounts,
    ttl::Ttls,
};

/// Maximum number of cookies in a page.
pub const PAGE_COOKIES_MAX: usize = 1_000;

/// The roles of one store.
#[derive(Debug, Clone)]
pub struct Store {
    /// Its cookies, for the sink.
    pub cookies: Arc<dyn Cookies>,
    /// Its lookups.
    pub lookup: Arc<dyn Lookup>,
    /// Its retry queue; `None` if it defers no cookies.
    pub backlog: Option<Arc<dyn Backlog>>,
    /// Its maintenance.
    pub upkeep: Arc<dyn Upkeep>,
    /// Its copies for other nodes.
    pub copies: Arc<dyn Copies>,
}

impl Store {
    /// A store with all roles.
    pub fn with_all_roles(store: impl Cookies + Lookup + Backlog + Upkeep + Copies) -> Self {
        let store = Arc::new(store);
        Self {
            cookies: Arc::clone(&store) as _,
            lookup: Arc::clone(&store) as _,
            backlog: Some(Arc::clone(&store) as _),
            copies: Arc::clone(&store) as _,
            upkeep: store,
        }
    }
}

/// Why a store operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Temporary: the same operation may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// Permanent until a restart of this process.
    #[error("{0}")]
    Broken(String),
}

/// Outcome of a write. Lists cookies by their index in the batch; all others are now in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Cookies older than the stored cookie of their pair.
    pub stale: Vec<u32>,
    /// Cookies that the store permanently rejected.
    pub rejected: Vec<RejectedCookie>,
    /// Cookies not written now, because the database of their DSP fails or does not exist yet. Empty if the store has no
    /// [`Backlog`].
    pub deferred: Vec<DeferredCookies>,
    /// The receipt to pass to [`Cookies::commit`].
    pub receipt: Receipt,
}

/// Identifies the server process that a batch was written to. Empty for stores that do not need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receipt(pub [u8; 12]);

/// State of a store at startup, apart from cookies.
#[derive(Debug, Clone, Default)]
pub struct StoredState {
    /// The durable cursors, one per producer.
    pub cursors: Vec<Cursor>,
    /// The DSPs in the store, in any order.
    pub slots: Vec<DspId>,
}

/// An entry of the [retry queue](crate::retry_queue), without its cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryEntry {
    /// Increasing: the time of queueing in microseconds since the Unix epoch, or the last number plus one if that is higher.
    pub number: u64,
    /// The DSP of all cookies of the entry.
    pub dsp_id: DspId,
    /// Number of its cookies.
    pub cookies: u64,
    /// Number of its deletions.
    pub deletions: u64,
    /// Bytes that count toward the size limit of the queue.
    pub bytes: u64,
}

/// An entry with its cookies.
#[derive(Debug, Clone)]
pub struct FullRetryEntry {
    /// Its metadata.
    pub entry: RetryEntry,
    /// Its cookies, as an encoded chunk of the wire format.
    pub chunk: Bytes,
}

/// Cookies of one DSP that the store cannot write now. [`Backlog::retry`] writes them later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredCookies {
    /// The DSP.
    pub dsp_id: DspId,
    /// The error; `None` if the database does not exist yet or earlier cookies are queued.
    pub why: Option<Arc<str>>,
    /// The indices of the cookies in the batch.
    pub indices: Vec<u32>,
}

/// A permanently rejected cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedCookie {
    /// Its index in the batch.
    pub index: u32,
    /// The reason given by the store.
    pub reason: String,
}

impl WriteOutcome {
    /// Adds deferred cookies of a DSP.
    pub fn deferred(&mut self, dsp_id: DspId, why: Option<Arc<str>>, mut indices: Vec<u32>) {
        let mut others = self.deferred.iter_mut();
        match others.find(|other| other.dsp_id == dsp_id) {
            Some(other) => {
                other.indices.append(&mut indices);
                other.why = why.or(other.why.take());
            }
            None => self.deferred.push(DeferredCookies {
                dsp_id,
                why,
                indices,
            }),
        }
    }

    /// Indices of rejected and deferred cookies: the store has neither these nor newer ones.
    pub fn not_stored(&self) -> impl Iterator<Item = u32> {
        let rejected = self.rejected.iter().map(|rejected| rejected.index);
        let deferred = self.deferred.iter().flat_map(|it| &it.indices);
        rejected.chain(deferred.copied())
    }

    /// Counts the outcomes of a batch with this number of cookies.
    pub fn counts(&self, cookies: usize) -> LedgerCounts {
        let deferred = self.deferred.iter().map(|it| it.indices.len());
        let (stale, rejected) = (self.stale.len(), self.rejected.len());
        let in_retry_queue: usize = deferred.sum();
        LedgerCounts {
            written: (cookies - stale - rejected - in_retry_queue) as u64,
            stale: stale as u64,
            rejected: rejected as u64,
            in_retry_queue: in_retry_queue as u64,
            ..LedgerCounts::default()
        }
    }

    /// Adds the outcome of other cookies of the same batch.
    pub fn merge(&mut self, mut other: Self) {
        self.stale.append(&mut other.stale);
        self.rejected.append(&mut other.rejected);
        for other in other.deferred {
            self.deferred(other.dsp_id, other.why, other.indices);
        }
    }
}

/// Parameters of an expiry.
#[derive(Clone, Copy)]
pub struct Expiry<'a> {
    /// Whether the window is open.
    pub open: bool,
    /// The current time.
    pub now: UnixMicros,
    /// Collections swept since this time are skipped.
    pub since: UnixMicros,
    /// Time until the window closes; `None` if it never does.
    pub time_left: Option<Duration>,
    /// Cancelled to stop it early.
    pub stop: &'a CancellationToken,
    /// Deletions of cookies that the store may still have.
    pub deletions: &'a Deletions,
    /// Receives each step of a sweep, and the number of cookies, including superseded values, that were deleted otherwise since
    /// the last call.
    pub report: &'a (dyn Fn(&SweepProgress) + Send + Sync),
}

/// Progress of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepProgress {
    /// Cookies scanned in this step.
    pub scanned: u64,
    /// Expired cookies deleted in this step.
    pub deleted: u64,
    /// Estimated number of cookies left to scan.
    pub remaining: Option<u64>,
}

/// Result of an expiry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpiryResult {
    /// Whether nothing remains to be done. Otherwise the next call should follow soon.
    pub complete: bool,
    /// Time since the oldest cookie of each DSP expired. Contains only DSPs known to have expired cookies.
    pub overdue: BTreeMap<DspId, Duration>,
    /// The first error that concerns a single DSP. All other DSPs are complete.
    pub failed: Option<StoreError>,
}

/// Parameters of a compaction.
#[derive(Clone, Copy)]
pub struct Compaction<'a> {
    /// Collections compacted since this time are skipped.
    pub since: UnixMicros,
    /// The wall clock.
    pub clock: &'a Clock,
    /// Cancelled to stop it early.
    pub stop: &'a CancellationToken,
    /// Receives the duration and the reclaimed bytes of each compacted collection.
    pub report: &'a (dyn Fn(Duration, u64) + Send + Sync),
}

/// Selection of the matches of a lookup.
#[derive(Debug)]
pub struct LookupQuery {
    /// The users.
    pub user_ids: Vec<Box<str>>,
    /// The DSPs in ascending order; `None` for all. A store may also return matches of other DSPs.
    pub dsps: Option<Arc<[DspId]>>,
    /// When to return what was read until then.
    pub deadline: Instant,
    /// Released when no thread works on the query any more, which may be after the deadline.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Result of a lookup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupResult {
    /// The matches of each user of the query, in its order, also expired and deleted ones. `None` if they were not read in time.
    pub users: Vec<Option<UserMatches>>,
    /// DSPs whose cookies could not be read, or not in time.
    pub unavailable: Vec<DspId>,
    /// The error of the first unavailable DSP.
    pub why: Option<String>,
}

/// Selection of the cookies of a page.
#[derive(Debug, Clone)]
pub struct PageQuery {
    /// DSP of the cookies.
    pub dsp_id: DspId,
    /// Time before which the cookies were accepted.
    pub before: UnixMicros,
    /// User id after which the page begins; empty for the first page.
    pub after_user: String,
}

/// Some cookies of one DSP, ordered by user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// User id, buyer uid, and time of acceptance.
    pub cookies: Vec<(String, String, UnixMicros)>,
    /// The last user that was read; `None` at the end.
    pub next: Option<String>,
}

/// The writes of a store, and its state at startup. A store receives complete batches. It chooses the order of writes, the
/// connections and the writes that it skips.
#[async_trait]
pub trait Cookies: fmt::Debug + Send + Sync + 'static {
    /// Reads the state that is needed at startup, and adds the stored deletions to `deletions`, in parts, because a store can
    /// have more deletions than fit in memory.
    ///
    /// # Errors
    /// When the store cannot be read. A later call adds all deletions.
    async fn load(&self, deletions: &Deletions) -> Result<StoredState, StoreError>;

    /// Writes the cookies of `batch`, so that bidders can read them. They and the cursors become durable when the batch is
    /// also [committed](Self::commit).
    ///
    /// First the batch's [deletions](Batch::deletions) are stored, and the cookies that they cover are removed.
    /// Deletions of a DSP are only stored; see [`Upkeep::remove_dsp`]. Cookies of a DSP in
    /// [`deferred`](WriteOutcome) may not have been removed.
    ///
    /// Newest wins, by the rule of [`proto::newest`]: a cookie older than the stored one of its pair is skipped. Times are
    /// compared in the resolution of the store: microseconds (embedded) or milliseconds (MongoDB). Idempotent: after an error
    /// any of the cookies may be stored, and the same batch can be written again. Only one task may call it at a time.
    ///
    /// A failing database does not affect other DSPs: its cookies are returned as [deferred](WriteOutcome::deferred).
    ///
    /// # Errors
    /// When other cookies were not written.
    async fn write(&self, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError>;

    /// Makes the cookies of a written batch durable, and then its cursors and new DSPs. Batches are committed in order; the
    /// next one may be written at the same time. A no-op for a store whose [`write`](Self::write) is already durable.
    ///
    /// # Errors
    /// When the batch may not be durable. It must then be written again before the next commit.
    async fn commit(&self, batch: &Batch, receipt: Receipt) -> Result<(), StoreError>;

    /// Checks that the store is writable, without changing it. This is cheap.
    ///
    /// # Errors
    /// When it is not writable.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Duration of an operation after which the store is assumed to hang until a restart; `None` if every operation has a
    /// deadline.
    fn hang_timeout(&self) -> Option<Duration>;
}

/// The reads of a store.
#[async_trait]
pub trait Lookup: fmt::Debug + Send + Sync + 'static {
    /// The matches of a user, if they are in memory. Does not block. Also returns expired and deleted ones.
    fn in_memory(&self, user_id: &str) -> Option<UserMatches>;

    /// Reads the matches of users, by the deadline of the query. Also returns expired and deleted ones.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn lookup(&self, query: LookupQuery) -> Result<LookupResult, StoreError>;

    /// The number of cookies of each DSP. This is cheap, and an estimate if the store does not count them.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn stored_cookies(&self) -> Result<BTreeMap<DspId, u64>, StoreError>;

    /// The DSPs with cookies, from a list that may be some seconds old.
    fn dsps(&self) -> BTreeSet<DspId>;

    /// TTLs of the cookies.
    fn ttls(&self) -> &Ttls;

    /// The current time, with which the TTLs are compared.
    fn now(&self) -> UnixMicros {
        clock::now()
    }

    /// Resolution of stored times in microseconds.
    fn resolution_micros(&self) -> u64 {
        1
    }

    /// The next cookies of a DSP, after a bounded number of reads. A page may be empty although others follow. Never returns an
    /// expired cookie, or one that `deletions` cover.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn page(&self, query: &PageQuery, deletions: &Deletions) -> Result<Page, StoreError>;
}

/// What a new node reads from the store of another, and the progress of filling this store.
#[async_trait]
pub trait Copies: fmt::Debug + Send + Sync + 'static {
    /// The order of positions: the kind of store determines it.
    fn order(&self) -> &'static str;

    /// The next cookies of all DSPs, after a bounded number of reads. Positions of another kind of store mean the start. Never
    /// returns an expired cookie, or one that `deletions` cover.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn cookies_after(
        &self,
        position: &str,
        deletions: &Deletions,
    ) -> Result<CopyPage, StoreError>;

    /// The next deletions in the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn deletions_after(&self, position: &str) -> Result<CopyPage, StoreError>;

    /// Approximate number of cookies in the store. This is cheap.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn approximate_cookies(&self) -> Result<u64, StoreError>;

    /// The progress of filling this store, if it was ever filled from another node.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn copy_state(&self) -> Result<Option<String>, StoreError>;

    /// Stores the progress durably.
    ///
    /// # Errors
    /// When it may not be durable.
    async fn put_copy_state(&self, state: &str) -> Result<(), StoreError>;
}

/// The [retry queue](crate::retry_queue) of a store that [defers](WriteOutcome::deferred) cookies.
#[async_trait]
pub trait Backlog: fmt::Debug + Send + Sync + 'static {
    /// Whether the DSP has a database.
    fn has_slot(&self, dsp_id: DspId) -> bool;

    /// Writes `batch`, which contains only cookies of this DSP, and makes them durable. Creates the DSP's database if
    /// needed. With an empty batch, checks whether the database is writable. May run concurrently with
    /// [`Cookies::write`] and for several DSPs.
    ///
    /// # Errors
    /// When not all cookies were written.
    async fn retry(&self, dsp_id: DspId, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError>;

    /// The entries of the queue, ordered by number.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn retry_entries(&self) -> Result<Vec<RetryEntry>, StoreError>;

    /// Adds entries to the queue; they are durable when it returns. Idempotent: after an error any of the entries
    /// may exist, and the same entries can be added again.
    ///
    /// # Errors
    /// When not all were added.
    async fn put_retry_entries(&self, entries: &[FullRetryEntry]) -> Result<(), StoreError>;

    /// The chunks of entries, ordered by number. Missing entries are skipped.
    ///
    /// # Errors
    /// When the store cannot be read.
    async fn read_retry_entries(&self, numbers: &[u64]) -> Result<Vec<Bytes>, StoreError>;

    /// Removes entries.
    ///
    /// # Errors
    /// When any of them may still exist.
    async fn remove_retry_entries(&self, numbers: &[u64]) -> Result<(), StoreError>;
}

/// The maintenance of a store.
#[async_trait]
pub trait Upkeep: fmt::Debug + Send + Sync + 'static {
    /// The name of the other consumer that owns expiry and compaction of a shared store; `None` if this consumer owns
    /// them. Must be called before each expiry and compaction, and every ten minutes.
    ///
    /// # Errors
    /// When the owner cannot be determined.
    async fn maintenance_owner(&self) -> Result<Option<String>, StoreError>;

    /// Enables or disables expiry according to its window. While the window is open, deletes expired cookies. Called at every
    /// change of the window and periodically, to handle new collections. May run concurrently with
    /// [`compact`](Self::compact).
    ///
    /// # Errors
    /// When it failed; a later call completes it.
    async fn expire(&self, expiry: Expiry<'_>) -> Result<ExpiryResult, StoreError>;

    /// Reclaims the disk space of deleted cookies, if the store does not do so itself and enough can be reclaimed. Returns
    /// whether nothing remains to be done. The store records compactions. When `stop` is cancelled, it starts no further
    /// collection and stops the current one as soon as possible.
    ///
    /// # Errors
    /// When a collection failed; all others are done. A later call completes it.
    async fn compact(&self, compaction: Compaction<'_>) -> Result<bool, StoreError>;

    /// Removes all cookies that a deletion of a DSP covers, in short steps, and records the deletion as finished.
    /// Returns the number of removed cookies, or `None` if `stop` was cancelled before the end.
    ///
    /// # Errors
    /// When the store fails; a later call continues.
    async fn remove_dsp(
        &self,
        deletion: &DspDeletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError>;

    /// Stores the [floor](crate::deletions::Deletion::floor), and removes the deletions that are no longer
    /// [needed](crate::deletions::StoredDeletion::is_needed).
    ///
    /// # Errors
    /// When the store fails; a later call also removes these deletions.
    async fn remove_deletions_until(&self, floor: UnixMicros) -> Result<(), StoreError>;

    /// Deletes cursors last committed before `before`, and the state of consumers
    /// that no longer exist. Returns the producers of this consumer's deleted cursors.
    ///
    /// # Errors
    /// When it failed; a later call completes it.
    async fn delete_cursors_before(&self, before: UnixMicros) -> Result<Vec<Arc<str>>, StoreError>;
}
