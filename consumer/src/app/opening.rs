//! From the settings to the store they name.

use std::sync::Arc;

use crate::{
    config::{Config, StoreConfig},
    dsp_slots::LookupBound,
    store::{
        Store,
        discard::DiscardStore,
        embedded::EmbeddedStore,
        mongodb::{MongodbStore, Options},
    },
};

/// Opens the store that the configuration names. MongoDB need not be up for that.
///
/// # Errors
/// When it can never work, with what to do.
pub async fn open_store(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let lookup = LookupBound {
        listed: config.storing.dsps(),
        others_max: config.storing.dsps_max,
    };
    Ok(match &config.storing.store {
        StoreConfig::Embedded(folder) => {
            let (folder, ttls) = (folder.clone(), config.keeping.ttls());
            let store = EmbeddedStore::open(folder, ttls).await?;
            Arc::new(store.with_lookup_bound(lookup))
        }
        StoreConfig::Mongodb(uri) => Arc::new(MongodbStore::new(Options {
            uri: uri.clone(),
            name: config.reading.name.clone(),
            prefix: config.mongodb.mongodb_prefix.clone(),
            writers: config.mongodb.mongodb_writers,
            ttls: config.keeping.ttls(),
            expiry: config.night.expiry,
            lookup,
        })),
        StoreConfig::Discard => Arc::new(DiscardStore::default()),
    })
}
