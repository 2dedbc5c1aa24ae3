//! Where cookies are kept: one contract, several stores.
//!
//! A store is given whole batches. How it gets them onto its disk, in which order, with how many connections and
//! what it may leave out because nothing would change, is its own affair, as long as the contract of [`Store`]
//! holds.

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
};

/// What a store answers, in time.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Why a store could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It may work later: to be repeated as it is.
    #[error("{0}")]
    Unavailable(String),
    /// It will never work again in this process.
    #[error("{0}")]
    Broken(String),
}

/// What became of the cookies of a batch: of those named here; all others are now in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Older than what the store has of their pair, as indices of the batch.
    pub stale: Vec<u32>,
    /// Refused forever, each by itself.
    pub rejected: Vec<RejectedCookie>,
    /// Not taken now, because something is wrong with the slot of their DSP alone.
    pub deferred: Vec<DeferredCookies>,
    /// What the store wants to see again when the batch is committed.
    pub receipt: Receipt,
}

/// Proof of where a batch was written. Stores that need none leave it empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receipt(pub [u8; 12]);

/// What a store has beside cookies, at the start.
#[derive(Debug, Clone, Default)]
pub struct StoredState {
    /// The cursors of the newest batches, one a producer.
    pub cursors: Vec<Cursor>,
    /// The DSPs that have a slot, in any order.
    pub slots: Vec<u32>,
    /// What is in the [retry queue](crate::aside), in the order of numbers. A store that takes the cookies of all DSPs has none.
    pub retry_queue: Vec<Entry>,
}

/// What the [retry queue](crate::aside) holds under one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Later entries have greater numbers: the time of queueing in microseconds since the Unix epoch, or one more than the last.
    pub number: u64,
    /// The DSP of all its cookies.
    pub dsp_id: u32,
    /// How many cookies it holds.
    pub cookies: u64,
    /// What it takes of the queue's bound.
    pub bytes: u64,
}

/// An entry with its cookies.
#[derive(Debug, Clone)]
pub struct FullRetryEntry {
    /// Its part of the index.
    pub entry: Entry,
    /// An encoded chunk as the wire has it.
    pub chunk: Bytes,
}

/// Cookies of one DSP that the store does not take now, but may take later: by [`Store::retry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeferredCookies {
    /// Whose.
    pub dsp_id: u32,
    /// What is wrong; nothing where its slot is still to be made.
    pub why: Option<Arc<str>>,
    /// Their indices in the batch.
    pub indices: Vec<u32>,
}

/// A cookie that can never be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedCookie {
    /// Its index in the batch.
    pub index: u32,
    /// Why, in the store's words.
    pub reason: String,
}

impl WriteOutcome {
    /// Adds cookies of a DSP that are not taken.
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

    /// The indices of cookies that are not in the store, nor is anything newer: those refused and those not taken.
    pub fn not_stored(&self) -> impl Iterator<Item = u32> {
        let rejected = self.rejected.iter().map(|rejected| rejected.index);
        let deferred = self.deferred.iter().flat_map(|it| &it.indices);
        rejected.chain(deferred.copied())
    }

    /// Adds what became of other cookies of the same batch.
    pub fn merge(&mut self, mut other: Self) {
        self.stale.append(&mut other.stale);
        self.rejected.append(&mut other.rejected);
        for other in other.deferred {
            self.deferred(other.dsp_id, other.why, other.indices);
        }
    }
}

/// What a store is told for an expiry.
#[derive(Clone, Copy)]
pub struct Expiry<'a> {
    /// Whether the window is open.
    pub open: bool,
    /// What time it is, in microseconds since the Unix epoch.
    pub now: u64,
    /// What was looked through for expired cookies since then, in microseconds since the Unix epoch, has had its turn.
    pub since: u64,
    /// How long the window stays open, if it closes.
    pub left: Option<Duration>,
    /// Cancelled when it is to end early.
    pub stop: &'a CancellationToken,
    /// Told how far it is, where it takes long.
    pub report: &'a (dyn Fn(&SweepProgress) + Send + Sync),
}

impl<'a> Expiry<'a> {
    /// An expiry that tells nobody how far it is.
    #[must_use]
    pub fn new(open: bool, now: u64, stop: &'a CancellationToken) -> Self {
        Self {
            open,
            now,
            since: now,
            left: None,
            stop,
            report: &|_| {},
        }
    }
}

/// A part of a sweep through all cookies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepProgress {
    /// Cookies that were looked at.
    pub looked: u64,
    /// Expired ones that were deleted.
    pub deleted: u64,
    /// How many cookies the sweep has yet to look at, by estimate.
    pub left: Option<u64>,
}

/// What an expiry did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expired {
    /// Expired cookies found to be deleted since the last call and not reported, older values of theirs included.
    pub deleted: u64,
    /// Whether all is as the window wants it; if not, the next call should come soon.
    pub complete: bool,
    /// How far the oldest cookie of each DSP is beyond its time to live, where it is and the store can tell.
    pub overdue: BTreeMap<u32, Duration>,
    /// What could not be done for single DSPs; all else was.
    pub failed: Option<StoreError>,
}

/// What a store is told for a compaction.
#[derive(Clone, Copy)]
pub struct Compaction<'a> {
    /// What was compacted since then, in microseconds since the Unix epoch, is left alone.
    pub since: u64,
    /// What time it is.
    pub clock: &'a Clock,
    /// Cancelled when no more may be begun.
    pub stop: &'a CancellationToken,
    /// Told of each collection that was compacted: how long it took, and the bytes given back to the file system.
    pub report: &'a (dyn Fn(Duration, u64) + Send + Sync),
}

/// All that a store knows of one user: DSP to buyer uid.
pub type BuyerUids = BTreeMap<u32, String>;

/// What a lookup found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupResult {
    /// What the user's DSPs call it.
    pub buyer_uids: BuyerUids,
    /// DSPs that may know the user, but whose slot could not be read.
    pub unavailable: Vec<u32>,
    /// Why the first of these could not.
    pub why: Option<String>,
}

/// A place for cookies that survives the process.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What it has beside cookies.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn load(&self) -> Answer<'_, StoredState>;

    /// Brings in the cookies of `batch`: bidders can read them now. They are durable, and with them the cursors, once
    /// the batch is [committed](Self::commit) as well.
    ///
    /// Newest wins, as [`proto::newest`] says: a cookie that is older than what the store has of its pair is left out. Time counts as finely as the store keeps it: microseconds embedded,
    /// milliseconds in MongoDB. Idempotent: after an error any part of the cookies may be stored, and the same batch
    /// may be written again. Called by one task at a time.
    ///
    /// What is wrong with the slot of one DSP keeps no other from being stored: its cookies come back as
    /// [not taken](Written::not_taken).
    ///
    /// # Errors
    /// When something else was not brought in.
    fn write(&self, batch: Arc<Batch>) -> Answer<'_, WriteOutcome>;

    /// Makes the cookies of a batch that was written durable, and after them its cursors and slots. In the order of batches; the
    /// next may be written meanwhile. A store that has done so in [`write`](Self::write) need not.
    ///
    /// # Errors
    /// When that is not certain. The batch must then be written again before it is committed again.
    fn commit<'a>(&'a self, _batch: &'a Batch, _receipt: Receipt) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Brings in cookies of one DSP that were not taken before, all of `batch`, and makes them durable; makes the DSP's slot
    /// if it has none. Without a cookie, asks whether some could be written. May be called beside [`write`](Self::write),
    /// and for several DSPs at once.
    ///
    /// # Errors
    /// When not all were brought in.
    fn retry(&self, _dsp_id: u32, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        Box::pin(async move {
            let written = self.write(Arc::clone(&batch)).await?;
            self.commit(&batch, written.receipt).await?;
            Ok(written)
        })
    }

    /// Whether a DSP's cookies can be stored without making a slot for them first.
    fn has_slot(&self, _dsp_id: u32) -> bool {
        true
    }

    /// Puts entries into the retry queue; they are durable when it returns. After an error any of them may be there, and the
    /// same may be put again.
    ///
    /// # Errors
    /// When not all were put.
    fn put_retry_entries(&self, _entries: Arc<[FullRetryEntry]>) -> Answer<'_, ()> {
        let why = "this store has no retry queue".to_owned();
        Box::pin(std::future::ready(Err(StoreError::Broken(why))))
    }

    /// The chunks of entries in the retry queue, in the order of their numbers. Entries that are not there have none.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn read_retry_entries<'a>(&'a self, _numbers: &'a [u64]) -> Answer<'a, Vec<Bytes>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Removes entries from the retry queue.
    ///
    /// # Errors
    /// When any of them may still be there.
    fn remove_retry_entries<'a>(&'a self, _numbers: &'a [u64]) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The buyer uids of a user, who may have none. An expired cookie is not returned, deleted or not. A DSP whose slot
    /// cannot be read is named, and keeps no other from being found.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, LookupResult>;

    /// Checks that the store could be written now, as far as that shows without writing. Cheap.
    ///
    /// # Errors
    /// When it could not.
    fn ping(&self) -> Answer<'_, ()>;

    /// Which consumer runs expiry and compaction instead of this one, where several share what they write into. To be
    /// asked before each of both, and every ten minutes.
    ///
    /// # Errors
    /// When it cannot be told.
    fn maintenance_owner(&self) -> Answer<'_, Option<String>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Brings expiry into the state of its window, and while that is open makes sure that what has expired is deleted
    /// in time. Called at every change and again now and then: what was done need not be done again, what appeared
    /// meanwhile is done. May run beside [`compact`](Self::compact).
    ///
    /// # Errors
    /// When it could not be done; a later call makes up for it.
    fn expire<'a>(&'a self, expiry: Expiry<'a>) -> Answer<'a, Expired>;

    /// How long it may take to answer before it is likely to never answer again in this process; `None` where each answer
    /// has a deadline of its own.
    fn hang_timeout(&self) -> Option<Duration> {
        None
    }

    /// Deletes cursors that were last committed before `before`, in microseconds since the Unix epoch, and those of
    /// consumers that shared the store and are gone; returns the producers of its own.
    ///
    /// # Errors
    /// When it could not be done; a later call makes up for it.
    fn delete_cursors_before(&self, before: u64) -> Answer<'_, Vec<Arc<str>>>;

    /// Gives back the space of what is gone, if the store does not do that by itself and it is worth the work. Tells whether
    /// nothing is left to be done.
    /// What was compacted is remembered beyond the process. Begins nothing more when `stop` is cancelled, and ends
    /// what it has begun as early as it can; dropped soon after that, it leaves it to end by itself.
    ///
    /// # Errors
    /// When something could not be done; all else was. A later call makes up for it.
    fn compact<'a>(&'a self, _compaction: Compaction<'a>) -> Answer<'a, bool> {
        Box::pin(std::future::ready(Ok(true)))
    }
}
