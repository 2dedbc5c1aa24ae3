//! Opens the configured store.

use std::sync::Arc;

use crate::{
    config::{Config, StoreConfig},
    store::{Store, discard::DiscardStore, embedded::EmbeddedStore, mongodb::MongodbStore},
};

/// Opens the configured store. MongoDB is not contacted yet.
///
/// # Errors
/// When the embedded store cannot be opened. The error states the remedy.
pub async fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match &config.storage.store {
        StoreConfig::Embedded(dir) => {
            let (dir, ttls) = (dir.clone(), config.ttls.clone());
            Arc::new(EmbeddedStore::open(dir, ttls).await?)
        }
        StoreConfig::Mongodb(uri) => Arc::new(MongodbStore::new(config.mongodb_store(uri))),
        StoreConfig::Discard => Arc::new(DiscardStore::default()),
    })
}
