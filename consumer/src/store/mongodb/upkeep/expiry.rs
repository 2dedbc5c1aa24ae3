//! Expiry of cookies: by a TTL index on `t`, or by a [sweep](super::sweep) without an index.
//!
//! # TTL index
//!
//! Every cookie collection has one index on `t` that expires cookies. Its `expireAfterSeconds` switches it on and off. Each run
//! lists the indexes and changes only those in the wrong state. If an index can expire the right cookies, although it is sparse
//! or hidden, or has another name or collation, `collMod` changes it. An index is dropped and created again if it cannot expire
//! all cookies (partial), rejects cookies (unique), or cannot be changed (without `expireAfterSeconds`, before MongoDB 5.1).
//!
//! `collMod` waits for a running `compact` of the collection, and blocks all writes to it (measured with 6.0.5). So a run skips
//! collections being compacted, and changing or dropping an index waits at most [`CHANGE_MILLIS`] for locks. The server counts
//! the deletions: `metrics.ttl.deletedDocuments` of `serverStatus`.
//!
//! # Conversion
//!
//! The maintenance owner determines the mode; other consumers create collections in that mode. Collections are converted while
//! the window is open. The first pass of a sweep ends by dropping the disabled index; a new index is created concurrently with
//! writes. A collection with a record in `cookiesync.sweeps` is swept. Its missing index must not be created outside the
//! window.

mod plan;

use std::{sync::Arc, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, DateTime, Document, doc},
    error::Error,
};
use tokio::time::timeout;

use super::{
    super::{
        COOKIES, ExpiryMode, INVALID_OPTIONS, MongodbStore, NEVER_SECONDS, collection,
        connection::{Connection, run},
        error_class::{Failure, code, failure, unavailable},
    },
    sweep::{SweepRecord, SweepRecords},
};
use crate::store::{Expiry, ExpiryResult, StoreError};
use plan::{DesiredIndex, IndexAction, IndexPlan, NAME, plan};

/// Maximum time that the server waits for a lock to change an index. The wait blocks writes.
const CHANGE_MILLIS: i32 = 5_000;

/// Maximum time to wait for the creation of an index before other work continues.
const BUILD_TIMEOUT: Duration = Duration::from_secs(2);

impl MongodbStore {
    /// Creates the collection of a DSP, and so its database. In index mode, also creates the index, which expires nothing until
    /// the next expiry run. If the collection exists without the index, the next run creates the index, which takes minutes
    /// with millions of documents.
    pub(in super::super) async fn create_slot(
        &self,
        connection: &Connection,
        dsp_id: u32,
    ) -> Result<(), Failure> {
        let database = self.database(connection, dsp_id);
        if !self.has_cookies(&database).await? {
            let mode = self.server_mode(connection).await?;
            let created = run(async {
                collection::create(&database).await?;
                match mode {
                    ExpiryMode::Index => create_index(&database, NEVER_SECONDS).await,
                    ExpiryMode::Sweep => Ok(()),
                }
            });
            created.await?;
        }
        self.dsps.lock().add_slot(dsp_id);
        Ok(())
    }

    fn expire_after_seconds(&self, dsp_id: u32, open: bool) -> i64 {
        if open {
            i64::try_from(self.options.ttls.of(dsp_id).as_secs())
                .map_or(NEVER_SECONDS, |ttl| ttl.min(NEVER_SECONDS))
        } else {
            NEVER_SECONDS
        }
    }

    /// Runs an expiry in the configured mode.
    pub(super) async fn run_expiry(&self, expiry: &Expiry<'_>) -> Result<ExpiryResult, StoreError> {
        let connection = self.connection().await?;
        let records = self.read_records().await?;
        let mut expired = self.set_indexes(connection, expiry, &records).await?;
        if self.options.expiry == ExpiryMode::Sweep && expiry.open {
            let swept = self.sweep(expiry, records, &mut expired.failed).await?;
            let (complete, has_swept) = swept;
            if has_swept && self.other_owner().await?.is_none() {
                let records = self.read_records().await?;
                let failed = expired.failed.take();
                expired = self.set_indexes(connection, expiry, &records).await?;
                expired.failed = failed.or(expired.failed);
            }
            expired.complete &= complete;
        }
        Ok(expired)
    }

    /// The desired index of a collection. `swept` is its sweep record, if any.
    fn desired_index(
        &self,
        dsp_id: u32,
        expiry: &Expiry<'_>,
        swept: Option<&SweepRecord>,
    ) -> DesiredIndex {
        match self.options.expiry {
            ExpiryMode::Index if expiry.open || swept.is_none() => {
                DesiredIndex::ExpireAfter(self.expire_after_seconds(dsp_id, expiry.open))
            }
            ExpiryMode::Sweep if expiry.open && swept.is_some_and(SweepRecord::is_swept) => {
                DesiredIndex::Absent
            }
            ExpiryMode::Index | ExpiryMode::Sweep => DesiredIndex::Disabled,
        }
    }

    /// Sets the index of every cookie collection according to the window.
    async fn set_indexes(
        &self,
        connection: &Connection,
        expiry: &Expiry<'_>,
        records: &SweepRecords,
    ) -> Result<ExpiryResult, StoreError> {
        let Expiry { now, stop, .. } = *expiry;
        let mut expired = ExpiryResult {
            complete: true,
            ..ExpiryResult::default()
        };
        let failed = &mut expired.failed;
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            let database = self.database(connection, dsp_id);
            let namespace = format!("{}.{COOKIES}", database.name());
            let swept = records.get(&namespace);
            let desired = self.desired_index(dsp_id, expiry, swept);
            let has_cookies = self.has_cookies(&database).await;
            if self.isolate(has_cookies, failed).await? != Some(true) {
                continue;
            }
            if stop.is_cancelled() {
                expired.complete = false;
                return Ok(expired);
            }
            let overdue = match swept {
                Some(record) => record.overdue(now, self.options.ttls.of(dsp_id)),
                // Determined with the index, which may be new.
                None => {
                    let due = self.options.ttls.expired_before(dsp_id, now);
                    let oldest = oldest(&database).await.unwrap_or(due);
                    Duration::from_micros(due.saturating_sub(oldest))
                }
            };
            if overdue > Duration::ZERO {
                expired.overdue.insert(dsp_id, overdue);
            }
            let updated = self.update_index(connection, &database, desired).await;
            let updated = updated.map_err(|failure| match failure {
                Failure::Dsp(why) => Failure::Dsp(format!("index of {namespace}: {why}")),
                failure @ Failure::Server(_) => failure,
            });
            let done = self.isolate(updated, failed).await?;
            expired.complete &= done != Some(false);
            if done == Some(true)
                && swept.is_some()
                && matches!(desired, DesiredIndex::ExpireAfter(_))
            {
                self.delete_record(&namespace).await?;
            }
        }
        Ok(expired)
    }

    /// Updates the index of one collection. Returns false if the update must wait for a compaction or the creation of an index.
    async fn update_index(
        &self,
        connection: &Connection,
        database: &Database,
        desired: DesiredIndex,
    ) -> Result<bool, Failure> {
        let plan = plan(&list_indexes(database).await?, desired);
        if plan == IndexPlan::default() {
            return Ok(true);
        }
        if self.is_building(database.name())
            || self.is_compacting(connection, database.name()).await?
        {
            return Ok(false);
        }
        let seconds = match desired {
            DesiredIndex::ExpireAfter(seconds) => seconds,
            DesiredIndex::Disabled | DesiredIndex::Absent => NEVER_SECONDS,
        };
        let create = plan.action == IndexAction::Create;
        run(apply_plan(database, plan, seconds)).await?;
        if create {
            self.build_index(database, seconds).await
        } else {
            Ok(true)
        }
    }

    fn is_building(&self, database: &str) -> bool {
        let building = self.building.lock();
        building.as_deref() == Some(&*format!("{database}.{COOKIES}"))
    }

    /// Creates the index of a collection in the background, without a deadline: with millions of documents this takes minutes.
    /// The server accepts writes during that time, and lookups skip expired cookies. Only one index is created at a time.
    /// Returns false while this index is not complete.
    async fn build_index(&self, database: &Database, seconds: i64) -> Result<bool, Failure> {
        let building = Arc::clone(&self.building);
        let namespace = format!("{}.{COOKIES}", database.name());
        {
            let mut building = building.lock();
            if building.is_some() {
                return Ok(false);
            }
            *building = Some(namespace.clone());
        }
        tracing::info!(collection = namespace, "creating the index on field t");
        let database = database.clone();
        let mut task = self.tasks.spawn(async move {
            let began = tokio::time::Instant::now();
            let created = create_index(&database, seconds).await;
            *building.lock() = None;
            match &created {
                Ok(()) => {
                    tracing::info!(collection = namespace, took = ?began.elapsed(), "created the index on field t");
                }
                Err(error) => {
                    let why = unavailable(error);
                    tracing::warn!(collection = namespace, %why, "failed to create the index on field t, retrying");
                }
            }
            created
        });
        match timeout(BUILD_TIMEOUT, &mut task).await {
            Ok(Ok(created)) => created.map(|()| true).map_err(|error| failure(&error)),
            Ok(Err(error)) => Err(StoreError::Broken(format!("indexing failed: {error}")).into()),
            Err(_) => Ok(false),
        }
    }
}

/// Acceptance time of the oldest cookie of a collection, in microseconds since the Unix epoch. `None` if it is empty or has no
/// index.
async fn oldest(database: &Database) -> Option<u64> {
    let command = doc! {
        "find": COOKIES,
        // Documents without a date sort before all others.
        "filter": { "t": { "$gte": DateTime::from_millis(0) } },
        "sort": { "t": 1 },
        "hint": { "t": 1 },
        "projection": { "_id": 0, "t": 1 },
        "limit": 1,
        "singleBatch": true,
    };
    let reply = run(database.run_command(command)).await.ok()?;
    let found = reply.get_document("cursor").ok()?;
    let first = found.get_array("firstBatch").ok()?.first()?;
    let time = first.as_document()?.get_datetime("t").ok()?;
    let millis = u64::try_from(time.timestamp_millis()).ok()?;
    Some(millis.saturating_mul(1_000))
}

async fn list_indexes(database: &Database) -> Result<Vec<Document>, Failure> {
    // A collection has at most 64 indexes.
    let command = doc! { "listIndexes": COOKIES, "cursor": { "batchSize": 100 } };
    let reply = run(database.run_command(command)).await?;
    let cursor = reply.get_document("cursor").ok();
    let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
    let documents = batch.into_iter().flatten().filter_map(Bson::as_document);
    Ok(documents.cloned().collect())
}

async fn create_index(database: &Database, seconds: i64) -> Result<(), Error> {
    let command = doc! {
        "createIndexes": COOKIES,
        "indexes": [{ "key": { "t": 1 }, "name": NAME, "expireAfterSeconds": seconds }],
    };
    database.run_command(command).await.map(|_| ())
}

async fn drop_index(database: &Database, name: &str) -> Result<(), Error> {
    let namespace = format!("{}.{COOKIES}", database.name());
    tracing::info!(
        collection = namespace,
        index = name,
        "dropping the index on field t"
    );
    // The command blocks writes.
    let command = doc! { "dropIndexes": COOKIES, "index": name, "maxTimeMS": CHANGE_MILLIS };
    database.run_command(command).await.map(|_| ())
}

async fn apply_plan(database: &Database, plan: IndexPlan, seconds: i64) -> Result<(), Error> {
    for name in &plan.drop {
        drop_index(database, name).await?;
    }
    match &plan.action {
        // The caller creates the index in the background.
        IndexAction::Nothing | IndexAction::Create => Ok(()),
        IndexAction::Change(name) => {
            let change = doc! {
                "collMod": COOKIES,
                "index": { "name": name, "expireAfterSeconds": seconds },
                "maxTimeMS": CHANGE_MILLIS,
            };
            match database.run_command(change).await {
                // Before 5.1, an index without `expireAfterSeconds` cannot be changed.
                Err(error) if code(&error) == Some(INVALID_OPTIONS) => {
                    drop_index(database, name).await?;
                    create_index(database, seconds).await
                }
                changed => changed.map(|_| ()),
            }
        }
    }
}
