//! No store: counts cookies and forgets them. For measuring everything before the store.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;

use super::{Answer, Expired, Expiry, LookupResult, Store, StoredState, WriteOutcome};
use crate::batch::{Batch, Cursor};

/// Remembers cursors for the life of the process, and nothing else.
#[derive(Debug, Default)]
pub struct DiscardStore {
    cursors: Mutex<Vec<Cursor>>,
}

impl Store for DiscardStore {
    fn load(&self) -> Answer<'_, StoredState> {
        let cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = StoredState {
            cursors: cursors.clone(),
            ..StoredState::default()
        };
        std::future::ready(Ok(loaded)).boxed()
    }

    fn write(&self, batch: Arc<Batch>) -> Answer<'_, WriteOutcome> {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        for cursor in batch.cursors() {
            cursors.retain(|known| known.producer != cursor.producer);
            cursors.push(cursor.clone());
        }
        std::future::ready(Ok(WriteOutcome::default())).boxed()
    }

    fn lookup<'a>(&'a self, _user_id: &'a str) -> Answer<'a, LookupResult> {
        std::future::ready(Ok(LookupResult::default())).boxed()
    }

    fn ping(&self) -> Answer<'_, ()> {
        std::future::ready(Ok(())).boxed()
    }

    fn expire<'a>(&'a self, _: Expiry<'a>) -> Answer<'a, Expired> {
        let nothing = Expired {
            deleted: 0,
            complete: true,
            ..Expired::default()
        };
        std::future::ready(Ok(nothing)).boxed()
    }

    fn delete_cursors_before(&self, _before: u64) -> Answer<'_, Vec<Arc<str>>> {
        // They live no longer than the process.
        std::future::ready(Ok(Vec::new())).boxed()
    }
}
