//! The interface of stores, and its implementations.
//!
//! A store receives complete batches. It chooses the order of writes, the connections and the writes that it skips,
//! within the requirements of [`Store`].

pub mod discard;
pub mod embedded;
pub mod mongodb;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::{
    batch::{Batch, Cursor},
    clock::Clock,
    deletions::{Deletion, Deletions},
};

/// The future of a store operation.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

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
    /// Cookies not written now, because the database of their DSP fails or does not exist yet.
    pub deferred: Vec<DeferredCookies>,
    /// The receipt to pass to [`Store::commit`].
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
    pub slots: Vec<u32>,
    /// The [retry queue](crate::retry_queue), ordered by number. Empty if the store has none.
    pub retry_queue: Vec<RetryEntry>,
}

/// An entry of the [retry queue](crate::retry_queue), without its cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryEntry {
    /// Increasing: the time of queueing in microseconds since the Unix epoch, or the last number plus one if that is higher.
    pub number: u64,
    /// The DSP of all cookies of the entry.
    pub dsp_id: u32,
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

/// Cookies of one DSP that the store cannot write now. [`Store::retry`] writes them later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredCookies {
    /// The DSP.
    pub dsp_id: u32,
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
    pub fn deferred(&mut self, dsp_id: u32, why: Option<Arc<str>>, mut indices: Vec<u32>) {
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
    /// The current time in microseconds since the Unix epoch.
    pub now: u64,
    /// Collections swept since this time, in microseconds since the Unix epoch, are skipped.
    pub since: u64,
    /// Time until the window closes; `None` if it never does.
    pub time_left: Option<Duration>,
    /// Cancelled to stop it early.
    pub stop: &'a CancellationToken,
    /// Returns the time up to which stored cookies of a user and DSP are deleted, in microseconds since the Unix epoch; 0 for none.
    pub deleted_until: &'a (dyn Fn(&[u8], u32) -> u64 + Send + Sync),
    /// Receives each step of a sweep.
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
    /// Expired cookies, including superseded values, that were deleted since the last call and not reported as progress.
    pub deleted: u64,
    /// Whether nothing remains to be done. Otherwise the next call should follow soon.
    pub complete: bool,
    /// Time since the oldest cookie of each DSP expired. Contains only DSPs known to have expired cookies.
    pub overdue: BTreeMap<u32, Duration>,
    /// The first error that concerns a single DSP. All other DSPs are complete.
    pub failed: Option<StoreError>,
}

/// Parameters of a compaction.
#[derive(Clone, Copy)]
pub struct Compaction<'a> {
    /// Collections compacted since this time, in microseconds since the Unix epoch, are skipped.
    pub since: u64,
    /// The wall clock.
    pub clock: &'a Clock,
    /// Cancelled to stop it early.
    pub stop: &'a CancellationToken,
    /// Receives the duration and the reclaimed bytes of each compacted collection.
    pub report: &'a (dyn Fn(Duration, u64) + Send + Sync),
}

/// The buyer uids of one user, by DSP.
pub type BuyerUids = BTreeMap<u32, String>;

/// Result of a lookup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupResult {
    /// The buyer uids of the user.
    pub buyer_uids: BuyerUids,
    /// DSPs whose cookies could not be read.
    pub unavailable: Vec<u32>,
    /// The error of the first unavailable DSP.
    pub why: Option<String>,
}

/// Selection of the cookies of a page.
#[derive(Debug, Clone)]
pub struct PageQuery {
    /// DSP of the cookies.
    pub dsp_id: u32,
    /// Time before which the cookies were accepted, in microseconds since the Unix epoch.
    pub before: u64,
    /// User id after which the page begins; empty for the first page.
    pub after_user: String,
}

/// Some cookies of one DSP, ordered by user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// User id, buyer uid, and time of acceptance in microseconds since the Unix epoch.
    pub cookies: Vec<(String, String, u64)>,
    /// The last user that was read; `None` at the end.
    pub next: Option<String>,
}

/// A persistent store of cookies.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Reads the state that is needed at startup.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn load(&self) -> StoreFuture<'_, StoredState>;

    /// Adds the stored deletions to a table, in parts, because a store can have more deletions than fit in memory.
    ///
    /// # Errors
    /// When the store cannot be read. A later call adds all of them.
    fn load_deletions(&self, _deletions: Deletions) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Writes the cookies of `batch`, so that bidders can read them. They and the cursors become durable when the batch is
    /// also [committed](Self::commit).
    ///
    /// First the batch's [deletions](Batch::deletions) are stored, and the cookies that they cover are removed.
    /// Deletions of a DSP are only stored; see [`remove_dsp`](Self::remove_dsp). Cookies of a DSP in
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
    fn write(&self, batch: Arc<Batch>) -> StoreFuture<'_, WriteOutcome>;

    /// Makes the cookies of a written batch durable, and then its cursors and new DSPs. Batches are committed in order; the
    /// next one may be written at the same time. A no-op for a store whose [`write`](Self::write) is already durable.
    ///
    /// # Errors
    /// When the batch may not be durable. It must then be written again before the next commit.
    fn commit<'a>(&'a self, _batch: &'a Batch, _receipt: Receipt) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Writes `batch`, which contains only cookies of this DSP, and makes them durable. Creates the DSP's database if
    /// needed. With an empty batch, checks whether the database is writable. May run concurrently with
    /// [`write`](Self::write) and for several DSPs.
    ///
    /// # Errors
    /// When not all cookies were written.
    fn retry(&self, _dsp_id: u32, batch: Arc<Batch>) -> StoreFuture<'_, WriteOutcome> {
        Box::pin(async move {
            let written = self.write(Arc::clone(&batch)).await?;
            self.commit(&batch, written.receipt).await?;
            Ok(written)
        })
    }

    /// Whether the DSP has a database.
    fn has_slot(&self, _dsp_id: u32) -> bool {
        true
    }

    /// Adds entries to the retry queue; they are durable when it returns. Idempotent: after an error any of the entries
    /// may exist, and the same entries can be added again.
    ///
    /// # Errors
    /// When not all were added.
    fn put_retry_entries(&self, _entries: Arc<[FullRetryEntry]>) -> StoreFuture<'_, ()> {
        let why = "this store has no retry queue".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Broken(why))))
    }

    /// The chunks of entries in the retry queue, ordered by number. Missing entries are skipped.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn read_retry_entries<'a>(&'a self, _numbers: &'a [u64]) -> StoreFuture<'a, Vec<Bytes>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Removes entries from the retry queue.
    ///
    /// # Errors
    /// When any of them may still exist.
    fn remove_retry_entries<'a>(&'a self, _numbers: &'a [u64]) -> StoreFuture<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The buyer uids of a user. Never returns an expired cookie, or one that `deletions` cover. The result names the DSPs that
    /// cannot be read.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn lookup<'a>(
        &'a self,
        user_id: &'a str,
        deletions: &'a Deletions,
    ) -> StoreFuture<'a, LookupResult>;

    /// The next cookies of a DSP, after a bounded number of reads. A page may be empty although others follow. Never returns an
    /// expired cookie, or one that `deletions` cover.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn page<'a>(
        &'a self,
        _query: &'a PageQuery,
        _deletions: &'a Deletions,
    ) -> StoreFuture<'a, Page> {
        let error = StoreError::Unavailable("this store cannot be read in pages".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }

    /// Removes all cookies that a deletion of a DSP covers, in short steps, and records the deletion as finished.
    /// Returns the number of removed cookies, or `None` if `stop` was cancelled before the end.
    ///
    /// # Errors
    /// When the store fails; a later call continues.
    fn remove_dsp<'a>(
        &'a self,
        _deletion: &'a Deletion,
        _stop: &'a CancellationToken,
    ) -> StoreFuture<'a, Option<u64>> {
        Box::pin(std::future::ready(Ok(Some(0))))
    }

    /// Stores the [floor](Deletion::floor), and removes the deletions that are no longer
    /// [needed](crate::deletions::StoredDeletion::is_needed).
    ///
    /// # Errors
    /// When the store fails; a later call also removes these deletions.
    fn remove_deletions_until(&self, _floor: u64) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Checks that the store is writable, without changing it. This is cheap.
    ///
    /// # Errors
    /// When it is not writable.
    fn ping(&self) -> StoreFuture<'_, ()>;

    /// The name of the other consumer that owns expiry and compaction of a shared store; `None` if this consumer owns
    /// them. Must be called before each expiry and compaction, and every ten minutes.
    ///
    /// # Errors
    /// When the owner cannot be determined.
    fn maintenance_owner(&self) -> StoreFuture<'_, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Enables or disables expiry according to its window. While the window is open, deletes expired cookies. Called at every
    /// change of the window and periodically, to handle new collections. May run concurrently with
    /// [`compact`](Self::compact).
    ///
    /// # Errors
    /// When it failed; a later call completes it.
    fn expire<'a>(&'a self, expiry: Expiry<'a>) -> StoreFuture<'a, ExpiryResult>;

    /// Duration of an operation after which the store is assumed to hang until a restart; `None` if every operation has a
    /// deadline.
    fn hang_timeout(&self) -> Option<Duration> {
        None
    }

    /// Deletes cursors last committed before `before`, in microseconds since the Unix epoch, and the state of consumers
    /// that no longer exist. Returns the producers of this consumer's deleted cursors.
    ///
    /// # Errors
    /// When it failed; a later call completes it.
    fn delete_cursors_before(&self, before: u64) -> StoreFuture<'_, Vec<Arc<str>>>;

    /// Reclaims the disk space of deleted cookies, if the store does not do so itself and enough can be reclaimed. Returns
    /// whether nothing remains to be done. The store records compactions. When `stop` is cancelled, it starts no further
    /// collection and stops the current one as soon as possible.
    ///
    /// # Errors
    /// When a collection failed; all others are done. A later call completes it.
    fn compact<'a>(&'a self, _compaction: Compaction<'a>) -> StoreFuture<'a, bool> {
        Box::pin(std::future::ready(Ok(true)))
    }
}
