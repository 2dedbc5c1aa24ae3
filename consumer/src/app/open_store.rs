//! Opens the configured store.

use crate::{
    config::{Config, StoreConfig},
    store::{Store, embedded::EmbeddedStore, mongodb::MongodbStore},
};

/// Opens the configured store. MongoDB is not contacted yet.
///
/// # Errors
/// When the embedded store cannot be opened. The error states the remedy.
pub async fn open_store(config: &Config) -> anyhow::Result<Store> {
    Ok(match &config.args.storage.store {
        StoreConfig::Embedded(dir) => {
            let (dir, ttls) = (dir.clone(), config.ttls.clone());
            let cache_bytes = config.args.lookup.lookup_cache;
            EmbeddedStore::open(dir, ttls, cache_bytes).await?.into()
        }
        StoreConfig::Mongodb(uri) => {
            Store::with_all_roles(MongodbStore::new(config.mongodb_store(uri)))
        }
    })
}
