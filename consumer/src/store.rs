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

/// What became of the cookies of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Now in the store.
    pub written: u64,
    /// Older than what the store has of their pair.
    pub stale: u64,
    /// Refused for ever, each by itself.
    pub rejected: u64,
}

/// What an expiry did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Expired {
    /// Expired cookies deleted by this process since the last call, older values of theirs included.
    pub deleted: u64,
}

/// What a compaction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Collections, or key spaces, that were compacted.
    pub collections: u64,
    /// Whether all were.
    pub complete: bool,
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

    /// Makes the cookies of `batch` durable and after them, or with them, its cursors.
    ///
    /// Newest wins: a cookie accepted before the one that the store has of the same pair is left out; one
    /// accepted at the same time replaces it. Time counts as finely as the store keeps it: microseconds embedded,
    /// milliseconds in MongoDB. Idempotent: after an error any part of the cookies may be stored,
    /// a cursor only when all are, and the same batch may be written again. Called by one task at a time.
    ///
    /// # Errors
    /// When not everything is durable.
    fn write(&self, batch: Arc<Batch>) -> Answer<'_, Written>;

    /// The buyer uids of a user, who may have none. An expired cookie is not returned, deleted or not.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn lookup<'a>(&'a self, user_id: &'a str) -> Answer<'a, BuyerUids>;

    /// Checks that the store can be reached.
    ///
    /// # Errors
    /// When it cannot.
    fn ping(&self) -> Answer<'_, ()>;

    /// Brings expiry into the state of its window, and while that is open sees to it that what expired before
    /// `now`, in microseconds since the Unix epoch, is deleted in time. Called at every change and again now and
    /// then: what was done need not be done again. Ends early when `stop` is cancelled.
    ///
    /// # Errors
    /// When it could not be done; a later call makes up for it.
    fn expire<'a>(
        &'a self,
        open: bool,
        now: u64,
        stop: &'a CancellationToken,
    ) -> Answer<'a, Expired>;

    /// Deletes cursors that were last committed before `before`, in microseconds since the Unix epoch; returns
    /// their producers.
    ///
    /// # Errors
    /// When it could not be done; a later call makes up for it.
    fn forget_cursors(&self, before: u64) -> Answer<'_, Vec<Arc<str>>>;

    /// Gives back the space of what is gone, if the store does not do that by itself. Ends as early as it can
    /// when `stop` is cancelled; the next call then goes on from there.
    ///
    /// # Errors
    /// When it could not be done.
    fn compact<'a>(&'a self, stop: &'a CancellationToken) -> Answer<'a, Compacted>;
}

/// Opens the store that the configuration names. MongoDB need not be up for that.
///
/// # Errors
/// When it can never work, with what to do.
pub async fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match &config.store {
        StoreConfig::Embedded(folder) => {
            Arc::new(embedded::EmbeddedStore::open(folder.clone(), config.ttl).await?)
        }
        StoreConfig::Mongodb(uri) => Arc::new(mongodb::MongodbStore::new(
            uri.clone(),
            config.name.clone(),
            config.ttl,
        )),
        StoreConfig::Discard => Arc::new(discard::DiscardStore::default()),
    })
}

/// What was accepted before this has expired; both in microseconds since the Unix epoch.
pub(crate) fn expired_before(now: u64, ttl: Duration) -> u64 {
    now.saturating_sub(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX))
}
