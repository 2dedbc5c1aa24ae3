//! Where cookies are kept: one contract, several stores.
//!
//! A store is given whole batches. How it gets them onto its disk, in which order, with how many connections and
//! what it may leave out because nothing would change, is its own affair, as long as the contract of [`Store`]
//! holds.

pub mod discard;
pub mod embedded;
pub mod mongodb;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::{
    batch::{Batch, Cursor},
    clock::Clock,
    config::{Config, StoreConfig},
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

/// What became of the cookies of a batch: those named here, and all others are now in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Older than what the store has of their pair, as indices of the batch.
    pub stale: Vec<u32>,
    /// Refused for ever, each by itself.
    pub rejected: Vec<Rejected>,
    /// What the store wants to see again when the batch is committed.
    pub receipt: Receipt,
}

/// Proof of where a batch was written. Stores that need none leave it empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Receipt(pub [u8; 12]);

/// A cookie that can never be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its index in the batch.
    pub index: u32,
    /// Why, in the store's words.
    pub reason: String,
}

impl Written {
    /// Adds what became of other cookies of the same batch.
    pub fn merge(&mut self, mut other: Self) {
        self.stale.append(&mut other.stale);
        self.rejected.append(&mut other.rejected);
    }
}

/// What an expiry did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// Expired cookies found to be deleted since the last call, older values of theirs included.
    pub deleted: u64,
    /// Whether all is as the window wants it; if not, the next call should come soon.
    pub complete: bool,
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
    /// Told of each collection that was compacted.
    pub report: &'a (dyn Fn(&CompactedCollection) + Send + Sync),
}

/// One collection, or key space, that was compacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactedCollection {
    /// Its full name.
    pub name: String,
    /// How long it took.
    pub took: Duration,
    /// Bytes in its files that were in use by nothing, before.
    pub reusable_bytes: u64,
    /// Bytes given back to the file system.
    pub freed_bytes: u64,
}

/// What a compaction did, beside the collections that it reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Collections that were left out because there is little to gain.
    pub skipped: u64,
    /// Whether nothing is left to be done.
    pub complete: bool,
}

impl Compacted {
    /// There was nothing to be done.
    pub const NOTHING: Self = Self {
        skipped: 0,
        complete: true,
    };
}

/// All that a store knows of one user: DSP to buyer uid.
pub type BuyerUids = BTreeMap<u32, String>;

/// A place for cookies that survives the process.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The cursors of the newest batches, one a producer.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn load_cursors(&self) -> Answer<'_, Vec<Cursor>>;

    /// Brings in the cookies of `batch`: bidders can read them now. They are durable, and with them the cursors, once
    /// the batch is [committed](Self::commit) as well.
    ///
    /// Newest wins: a cookie accepted before the one that the store has of the same pair is left out; one
    /// accepted at the same time replaces it. Time counts as finely as the store keeps it: microseconds embedded,
    /// milliseconds in MongoDB. Idempotent: after an error any part of the cookies may be stored, and the same batch
    /// may be written again. Called by one task at a time.
    ///
    /// # Errors
    /// When not everything was brought in.
    fn write(&self, batch: Arc<Batch>) -> Answer<'_, Written>;

    /// Makes the cookies of a batch that was written durable, and after them its cursors. In the order of batches;
    /// the next may be written meanwhile. A store that has done so in [`write`](Self::write) need not.
    ///
    /// # Errors
    /// When that is not certain. The batch must then be written again before it is committed again.
    fn commit<'a>(&'a self, _batch: &'a Batch, _receipt: Receipt) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The buyer uids of a user, who may have none. An expired cookie is not returned, deleted or not.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, BuyerUids>;

    /// Checks that the store could be written now, as far as that shows without writing. Cheap.
    ///
    /// # Errors
    /// When it could not.
    fn ping(&self) -> Answer<'_, ()>;

    /// Brings expiry into the state of its window, and while that is open sees to it that what has expired at
    /// `now`, in microseconds since the Unix epoch, is deleted in time. Called at every change and again now and
    /// then: what was done need not be done again, what appeared meanwhile is seen to. Ends early when `stop` is
    /// cancelled. May run beside [`compact`](Self::compact).
    ///
    /// # Errors
    /// When it could not be done; a later call makes up for it.
    fn expire<'a>(
        &'a self,
        open: bool,
        now: u64,
        stop: &'a CancellationToken,
    ) -> Answer<'a, Expired>;

    /// How long it may take to answer before it is likely to never answer again in this process; `None` where each answer
    /// has a deadline of its own.
    fn hangs_after(&self) -> Option<Duration> {
        None
    }

    /// Deletes cursors that were last committed before `before`, in microseconds since the Unix epoch; returns
    /// their producers.
    ///
    /// # Errors
    /// When it could not be done; a later call makes up for it.
    fn forget_cursors(&self, before: u64) -> Answer<'_, Vec<Arc<str>>>;

    /// Gives back the space of what is gone, if the store does not do that by itself and it is worth the work.
    /// What was compacted is remembered beyond the process. Begins nothing more when `stop` is cancelled, and ends
    /// what it has begun as early as it can; dropped soon after that, it leaves it to end by itself.
    ///
    /// # Errors
    /// When something could not be done; all else was. A later call makes up for it.
    fn compact<'a>(&'a self, compaction: Compaction<'a>) -> Answer<'a, Compacted>;
}

/// Opens the store that the configuration names. MongoDB need not be up for that.
///
/// # Errors
/// When it can never work, with what to do.
pub async fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match &config.store {
        StoreConfig::Embedded(folder) => {
            Arc::new(embedded::EmbeddedStore::open(folder.clone(), config.ttls.clone()).await?)
        }
        StoreConfig::Mongodb(uri) => Arc::new(mongodb::MongodbStore::new(mongodb::Options {
            uri: uri.clone(),
            name: config.name.clone(),
            prefix: config.mongodb_prefix.clone(),
            layout: config.mongodb_layout,
            writers: config.mongodb_writers,
            ttls: config.ttls.clone(),
        })),
        StoreConfig::Discard => Arc::new(discard::DiscardStore::default()),
    })
}
