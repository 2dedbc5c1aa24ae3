//! The maintenance owner: the consumer that runs expiry and compaction of a shared server. It holds a lease in database
//! `cookiesync`, collection `maintenance`: `{_id: "owner", name: <consumer>, until: <date>, expiry: <mode>}`.
//!
//! Without an owner, consumers with different windows or TTLs would undo each other's index changes forever. A consumer
//! acquires or renews the lease before each maintenance run. By the server's clock, the lease expires after [`LEASE`]. It
//! is bound to the consumer's name, so a restarted owner continues immediately.

use std::time::Duration;

use clap::ValueEnum as _;
use mongodb::bson::{Document, doc};

use super::{
    super::{
        ExpiryMode, MongodbStore,
        connection::{Connection, run},
        error_class::write_errors,
    },
    compaction::RECORDS,
};
use crate::store::StoreError;

/// Duration of the lease: 2.5 intervals of maintenance runs.
const LEASE: Duration = Duration::from_secs(25 * 60);

impl MongodbStore {
    /// Acquires or renews the lease. Returns the owner, if it is another consumer.
    pub(super) async fn other_owner(&self) -> Result<Option<String>, StoreError> {
        let connection = self.connection().await?;
        let mode = self.options.expiry.to_possible_value();
        let mode = mode.expect("no mode is hidden");
        let own = doc! { "$literal": &self.options.name };
        let millis = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        // An upsert cannot have `$expr`, so the update decides. A missing field is less than any date.
        let is_free = doc! { "$or": [{ "$eq": ["$name", &own] }, { "$lt": ["$until", "$$NOW"] }] };
        let lease = doc! {
            "name": { "$cond": [&is_free, &own, "$name"] },
            "until": { "$cond": [&is_free, { "$add": ["$$NOW", millis] }, "$until"] },
            "expiry": { "$cond": [&is_free, mode.get_name(), "$expiry"] },
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

    /// The expiry mode of this server: that of the owner.
    pub(in super::super) async fn server_mode(
        &self,
        connection: &Connection,
    ) -> Result<ExpiryMode, StoreError> {
        let records = self.own_database(connection).collection(RECORDS);
        let owner = records.find_one(doc! { "_id": "owner" });
        let owner: Option<Document> = run(owner).await?;
        let is_other = |owner: &Document| {
            owner
                .get_str("name")
                .is_ok_and(|name| name != self.options.name)
        };
        let owner = owner.filter(is_other);
        let mode =
            owner.and_then(|it| ExpiryMode::from_str(it.get_str("expiry").ok()?, false).ok());
        Ok(mode.unwrap_or(self.options.expiry))
    }
}
