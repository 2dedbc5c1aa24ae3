//! Which consumer runs expiry and compaction where several write into one server: the one that holds the lease, in
//! database `cookiesync`, collection `maintenance`, `{_id: "owner", name: <consumer>, until: <date>, expiry: <how cookies expire>}`.
//!
//! With other windows or times to live than the owner's, each would undo what the other did to the indexes, forever. The
//! lease is taken and prolonged at each look, by the server's clock, and is free when its owner has not looked for
//! [`LEASE`]. It goes by the consumer's name, so that a restart goes on at once.

use std::{future::IntoFuture, time::Duration};

use mongodb::bson::{Document, doc};

use super::{
    ExpiryMode, Inner,
    compaction::RECORDS,
    connection::{Connection, in_time},
    retry_policy::write_errors,
};
use crate::store::StoreError;

/// Two and a half times as long as from one look to the next.
const LEASE: Duration = Duration::from_secs(25 * 60);

impl Inner {
    /// Takes the lease if it is free, or prolongs it. Returns who has it, if that is another.
    pub(super) async fn other_owner(&self) -> Result<Option<String>, StoreError> {
        let connection = self.connection().await?;
        let own = doc! { "$literal": &self.options.name };
        let millis = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
        // An upsert may have no `$expr`, so the update itself decides. What is missing is less than any date.
        let is_free = doc! { "$or": [{ "$eq": ["$name", &own] }, { "$lt": ["$until", "$$NOW"] }] };
        let lease = doc! {
            "name": { "$cond": [&is_free, &own, "$name"] },
            "until": { "$cond": [&is_free, { "$add": ["$$NOW", millis] }, "$until"] },
            "expiry": { "$cond": [&is_free, self.options.expiry.to_string(), "$expiry"] },
        };
        let command = doc! {
            "findAndModify": RECORDS,
            "query": { "_id": "owner" },
            "update": [{ "$set": lease }],
            "upsert": true,
            "new": true,
        };
        let database = self.own_database(connection);
        let answer = in_time(database.run_command(command).into_future()).await?;
        // That it was not acknowledged by others, say.
        drop(write_errors(&answer)?);
        let owner = answer.get_document("value");
        let name = owner.and_then(|owner| owner.get_str("name"));
        let name = name.map_err(|error| StoreError::Unavailable(format!("the lease: {error}")))?;
        Ok((name != self.options.name).then(|| name.to_owned()))
    }

    /// How cookies expire in this server: as the owner says.
    pub(super) async fn server_mode(
        &self,
        connection: &Connection,
    ) -> Result<ExpiryMode, StoreError> {
        let records = self.own_database(connection).collection(RECORDS);
        let owner = records.find_one(doc! { "_id": "owner" }).into_future();
        let owner: Option<Document> = in_time(owner).await?;
        let is_other = |owner: &Document| {
            owner
                .get_str("name")
                .is_ok_and(|name| name != self.options.name)
        };
        let owner = owner.filter(is_other);
        let mode = owner.and_then(|owner| owner.get_str("expiry").ok()?.parse().ok());
        Ok(mode.unwrap_or(self.options.expiry))
    }
}
