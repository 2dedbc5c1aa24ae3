//! A store that discards all cookies, for measuring the rest of the consumer: the stages upstream of the store.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Cookies, Receipt, Store, StoreError, StoredState, WriteOutcome};
use crate::{batch::Batch, deletions::Deletions};

/// Keeps nothing.
#[derive(Debug)]
pub struct DiscardStore;

impl From<DiscardStore> for Store {
    fn from(store: DiscardStore) -> Self {
        Self {
            cookies: Arc::new(store),
            lookup: None,
            backlog: None,
            upkeep: None,
        }
    }
}

#[async_trait]
impl Cookies for DiscardStore {
    async fn load(&self, _: &Deletions) -> Result<StoredState, StoreError> {
        Ok(StoredState::default())
    }

    async fn write(&self, _: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        Ok(WriteOutcome::default())
    }

    async fn commit(&self, _: &Batch, _: Receipt) -> Result<(), StoreError> {
        Ok(())
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn hang_timeout(&self) -> Option<Duration> {
        None
    }
}
