//! The maintenance owner: the consumer that runs expiry and compaction of a shared server. It holds a lease in database
//! `cookiesync`, collection `maintenance`: `{_id: "owner", name: <consumer>, until: <date>}`.
//!
//! Without an owner, each consumer would scan and compact all collections, by its own windows and TTLs. A consumer
//! acquires or renews the lease before each maintenance run. By the server's clock, the lease expires after [`LEASE`]. It
//! is bound to the consumer's name, so a restarted owner continues immediately.

use std::time::Duration;

use mongodb::bson::doc;

use super::{
    super::{MongodbStore, connection::run, error_class::write_errors},
    compaction::RECORDS,
};
use crate::store::StoreError;

/// Duration of the lease: 2.5 intervals of maintenance runs.
const LEASE: Duration = Duration::from_secs(25 * 60);

impl MongodbStore {
    /// Acquires or renews the lease. Returns the owner, if it is another consumer.
    pub(super) async fn other_owner(&self) -> Result<Option<String>, StoreError> {
        let connection = self.connection().await?;
        let own = doc! { "$literal": &self.options.name };
        let millis = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        // An upsert cannot have `$expr`, so the update decides. A missing field is less than any date.
        let is_free = doc! { "$or": [{ "$eq": ["$name", &own] }, { "$lt": ["$until", "$$NOW"] }] };
        let lease = doc! {
            "name": { "$cond": [&is_free, &own, "$name"] },
            "until": { "$cond": [&is_free, { "$add": ["$$NOW", millis] }, "$until"] },
        };
        let command = doc! {
            "findAndModify": RECORDS,
            "query": { "_id": "owner" },
            "update": [{ "$set": lease }],
            "upsert": true,
            "new": true,
        };
        let database = self.own_database(connection);
        let reply = run(database.run_command(command)).await?;
        // Fails, for instance, if other members do not acknowledge the write.
        drop(write_errors(&reply)?);
        let owner = reply.get_document("value");
        let name = owner.and_then(|owner| owner.get_str("name"));
        let name = name.map_err(|error| {
            StoreError::Unavailable(format!("invalid maintenance lease: {error}"))
        })?;
        Ok((name != self.options.name).then(|| name.to_owned()))
    }
}
