//! Expiry of cookies by a [sweep](super::sweep), after the removal of indexes that would expire or reject cookies.
//!
//! A TTL index on `t` deletes cookies regardless of the window and of their TTL, and each index makes writes more expensive. So
//! each run drops TTL indexes and unique indexes on `t`, and keeps all others. `dropIndexes` waits for a running `compact`
//! of the collection, and blocks all writes to it. So a run skips collections being compacted, and dropping an index waits at
//! most [`DROP_MILLIS`] for locks.

use std::time::Duration;

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
};

use super::super::{
    COOKIES, MongodbStore,
    connection::{Connection, run},
    databases::namespace,
    error_class::Failure,
    first_batch,
};
use crate::store::{Expiry, ExpiryResult, StoreError};

/// Maximum time that the server waits for a lock to drop an index. The wait blocks writes.
const DROP_MILLIS: i32 = 5_000;

impl MongodbStore {
    /// Drops harmful indexes. If the window is open, also sweeps all collections.
    pub(super) async fn run_expiry(&self, expiry: &Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        let connection = self.connection().await?;
        let mut expired = ExpiryResult {
            complete: true,
            ..ExpiryResult::default()
        };
        let failed = &mut expired.failed;
        let mut databases = Vec::new();
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            if expiry.stop.is_cancelled() {
                expired.complete = false;
                return Ok(expired);
            }
            let database = self.database(connection, dsp_id);
            let has_cookies = self.has_cookies(&database).await;
            if self.isolate(has_cookies, failed).await? != Some(true) {
                continue;
            }
            let dropped = self.drop_harmful_indexes(connection, &database).await;
            expired.complete &= self.isolate(dropped, failed).await? != Some(false);
            databases.push((dsp_id, database));
        }
        if failed.is_none() {
            self.keep_records(&databases).await?;
        }
        if expiry.open {
            expired.complete &= self.sweep(expiry, &databases, failed).await?;
        }
        let records = self.read_records().await?;
        for (dsp_id, database) in databases {
            let record = records.get(&namespace(&database));
            let overdue = record.map(|it| it.overdue(expiry.now, self.options.ttls.of(dsp_id)));
            if let Some(overdue) = overdue.filter(|it| !it.is_zero()) {
                expired.overdue.insert(dsp_id, overdue);
            }
        }
        Ok(expired)
    }

    /// Drops the harmful indexes of a collection. Returns false if this must wait for a compaction.
    async fn drop_harmful_indexes(
        &self,
        connection: &Connection,
        database: &Database,
    ) -> Result<bool, Failure> {
        // A collection has at most 64 indexes.
        let list = doc! { "listIndexes": COOKIES, "cursor": { "batchSize": 100 } };
        let indexes = match run(database.run_command(list)).await {
            // The collection was dropped in the meantime.
            Err(_) if !self.has_cookies(database).await? => return Ok(true),
            indexes => indexes?,
        };
        let harmful: Vec<_> = first_batch(&indexes).filter(|it| is_harmful(it)).collect();
        if harmful.is_empty() {
            return Ok(true);
        }
        if self.is_compacting(connection, database.name()).await? {
            return Ok(false);
        }
        for index in harmful {
            let name = index.get_str("name").unwrap_or_default();
            let collection = namespace(database);
            tracing::info!(collection, index = name, "dropping the index on field t");
            let drop = doc! { "dropIndexes": COOKIES, "index": name, "maxTimeMS": DROP_MILLIS };
            run(database.run_command(drop)).await?;
        }
        Ok(true)
    }
}

/// Whether this is an index on `t` only that expires or rejects cookies. Shells write the direction as a double.
fn is_harmful(index: &Document) -> bool {
    let is_number = |t: &Bson| matches!(t, Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_));
    let is_on_t = index
        .get_document("key")
        .is_ok_and(|key| key.len() == 1 && key.get("t").is_some_and(is_number));
    is_on_t && (index.contains_key("expireAfterSeconds") || index.contains_key("unique"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(key: Document, options: Document, expected: bool) {
        let mut index = doc! { "v": 2, "key": key, "name": "name" };
        index.extend(options);
        assert_eq!(is_harmful(&index), expected, "{index}");
    }

    #[test]
    fn only_indexes_that_expire_or_reject_cookies_are_harmful() {
        let expires = || doc! { "expireAfterSeconds": 60 };
        check(doc! { "t": 1 }, expires(), true);
        check(doc! { "t": -1.0 }, expires(), true);
        check(doc! { "t": 1_i64 }, doc! { "unique": true }, true);
        check(doc! { "t": 1 }, doc! {}, false);
        check(doc! { "t": 1 }, doc! { "sparse": true }, false);
        check(doc! { "t": "hashed" }, expires(), false);
        check(doc! { "t": 1, "b": 1 }, doc! { "unique": true }, false);
        check(doc! { "_id": 1 }, doc! {}, false);
    }
}
