//! A store that discards all cookies, for measuring the rest of the consumer: the stages upstream of the store.

use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::{Expiry, ExpiryResult, LookupResult, Store, StoreFuture, StoredState, WriteOutcome};
use crate::{
    batch::{Batch, Cursor},
    deletions::Deletions,
};

/// Keeps only cursors, in memory.
#[derive(Debug, Default)]
pub struct DiscardStore {
    cursors: Mutex<Vec<Cursor>>,
}

impl Store for DiscardStore {
    fn load(&self) -> StoreFuture<'_, StoredState> {
        let cursors = self.cursors.lock();
        let loaded = StoredState {
            cursors: cursors.clone(),
            ..StoredState::default()
        };
        std::future::ready(Ok(loaded)).boxed()
    }

    fn write(&self, batch: Arc<Batch>) -> StoreFuture<'_, WriteOutcome> {
        let mut cursors = self.cursors.lock();
        for cursor in batch.cursors() {
            cursors.retain(|known| known.producer != cursor.producer);
            cursors.push(cursor.clone());
        }
        std::future::ready(Ok(WriteOutcome::default())).boxed()
    }

    fn lookup<'a>(&'a self, _: &'a str, _: &'a Deletions) -> StoreFuture<'a, LookupResult> {
        std::future::ready(Ok(LookupResult::default())).boxed()
    }

    fn ping(&self) -> StoreFuture<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> StoreFuture<'a, ExpiryResult> {
        let nothing = ExpiryResult {
            deleted: 0,
            complete: true,
            ..ExpiryResult::default()
        };
        std::future::ready(Ok(nothing)).boxed()
    }

    fn delete_cursors_before(&self, _before: u64) -> StoreFuture<'_, Vec<Arc<str>>> {
        // Cursors are not persistent.
        std::future::ready(Ok(Vec::new())).boxed()
    }
}
