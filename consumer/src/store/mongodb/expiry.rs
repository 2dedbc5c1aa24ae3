//! What expires cookies: an index on `t`, or a [sweep](super::sweep) without one.
//!
//! With an index, every collection of ours has one index on `t` that may expire cookies; its `expireAfterSeconds` is the switch.
//! A look lists the indexes and changes only what is not as it should be. An index that would expire the right
//! cookies (sparse, hidden, under another name, with a collation) is changed by `collMod`; one that would not
//! (partial), refuses cookies (unique), or cannot be changed (without `expireAfterSeconds`, before MongoDB 5.1) is
//! dropped and made anew.
//!
//! `collMod` waits until a `compact` of the same collection ends, and all writes to it wait behind (measured with
//! 6.0.5). So what is being compacted is left for the next look; and neither it nor the dropping of an index waits longer than
//! [`CHANGE_MILLIS`] for anything else.
//!
//! Which of the two is a matter of the consumer that maintains the server: the others make collections as it would. While the
//! window is open, collections change over: to a sweep, whose first pass ends with the index dropped, after that was switched off; or
//! to an index, which is made beside the writing and then expires by itself. As long as there is a record in `cookiesync.sweeps`, a
//! collection has been swept, and lacks an index that is not to be made by day.
//!
//! With an index, the server itself counts deletions: `metrics.ttl.deletedDocuments` of `serverStatus`.

mod plan;

use std::{sync::Arc, time::Duration};

use mongodb::{
    Database,
    bson::{Bson, DateTime, Document, doc},
    error::Error,
};
use tokio::time::timeout;

use super::{
    COOKIES, ExpiryMode, INVALID_OPTIONS, Inner, NEVER_SECONDS, collection,
    connection::{Connection, answered, run},
    lock,
    retry_policy::{Failure, code, failure, unavailable},
    sweep::{SweepRecord, SweepRecords},
};
use crate::store::{Expired, Expiry, StoreError};
use plan::{DesiredIndex, IndexAction, IndexPlan, NAME, plan};

/// How long the server may wait for a lock before it gives a change up, and lets writes go on.
const CHANGE_MILLIS: i32 = 5_000;

/// How long the making of an index is waited for before all else goes on.
const BUILD_TIMEOUT: Duration = Duration::from_secs(2);

impl Inner {
    /// Creates the collection of a DSP, which creates its database; with its index, where cookies expire by one. The index
    /// expires nothing until the next look at all collections, as by day. If this ends between the two, or the collection is there
    /// already, that look creates the index: with millions of documents it takes minutes.
    pub(super) async fn create_slot(
        &self,
        connection: &Connection,
        dsp_id: u32,
    ) -> Result<(), Failure> {
        let database = self.database(connection, dsp_id);
        if !self.has_cookies(&database).await? {
            let mode = self.server_mode(connection).await?;
            let made = answered(async {
                collection::create(&database).await?;
                match mode {
                    ExpiryMode::Index => create_index(&database, NEVER_SECONDS).await,
                    ExpiryMode::Sweep => Ok(()),
                }
            });
            made.await?.map_err(|error| failure(&error))?;
        }
        self.dsps().add_slot(dsp_id);
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

    /// Brings expiry into the state of the window, whichever way cookies expire.
    pub(super) async fn run_expiry(&self, expiry: &Expiry<'_>) -> Result<Expired, StoreError> {
        let connection = self.connection().await?;
        let records = self.read_records().await?;
        let mut expired = self.set_indexes(connection, expiry, &records).await?;
        if self.options.expiry == ExpiryMode::Sweep && expiry.open {
            let swept = self.sweep(expiry, records, &mut expired.failed).await?;
            let (complete, any) = swept;
            if any && self.other_owner().await?.is_none() {
                let records = self.read_records().await?;
                let failed = expired.failed.take();
                expired = self.set_indexes(connection, expiry, &records).await?;
                expired.failed = failed.or(expired.failed);
            }
            expired.complete &= complete;
        }
        Ok(expired)
    }

    /// What the index of a collection is to be, which may have been swept.
    fn desired(
        &self,
        dsp_id: u32,
        expiry: &Expiry<'_>,
        swept: Option<&SweepRecord>,
    ) -> DesiredIndex {
        match self.options.expiry {
            ExpiryMode::Index if expiry.open || swept.is_none() => {
                DesiredIndex::After(self.expire_after_seconds(dsp_id, expiry.open))
            }
            ExpiryMode::Sweep if expiry.open && swept.is_some_and(SweepRecord::is_swept) => {
                DesiredIndex::Gone
            }
            ExpiryMode::Index | ExpiryMode::Sweep => DesiredIndex::Off,
        }
    }

    /// Gives the index of each of our collections the state of the window, also of those that appeared meanwhile.
    async fn set_indexes(
        &self,
        connection: &Connection,
        expiry: &Expiry<'_>,
        records: &SweepRecords,
    ) -> Result<Expired, StoreError> {
        let Expiry { now, stop, .. } = *expiry;
        let mut expired = Expired {
            complete: true,
            ..Expired::default()
        };
        let failed = &mut expired.failed;
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            let database = self.database(connection, dsp_id);
            let namespace = format!("{}.{COOKIES}", database.name());
            let swept = records.get(&namespace);
            let desired = self.desired(dsp_id, expiry, swept);
            let has_cookies = self.has_cookies(&database).await;
            if self.isolate(has_cookies, failed).await? != Some(true) {
                continue;
            }
            if stop.is_cancelled() {
                expired.complete = false;
                return Ok(expired);
            }
            let over = match swept {
                Some(record) => record.overdue(now, self.options.ttls.of(dsp_id)),
                // By the index, which may have been made just now.
                None => {
                    let due = self.options.ttls.expired_before(dsp_id, now);
                    let oldest = oldest(&database).await.unwrap_or(due);
                    Duration::from_micros(due.saturating_sub(oldest))
                }
            };
            if over > Duration::ZERO {
                expired.overdue.insert(dsp_id, over);
            }
            let looked = self.update_index(connection, &database, desired).await;
            let looked = looked.map_err(|failure| match failure {
                Failure::Dsp(why) => Failure::Dsp(format!("the index of {namespace}: {why}")),
                failure @ Failure::Server(_) => failure,
            });
            let done = self.isolate(looked, failed).await?;
            expired.complete &= done != Some(false);
            if done == Some(true) && swept.is_some() && matches!(desired, DesiredIndex::After(_)) {
                self.forget_record(&namespace).await?;
            }
        }
        Ok(expired)
    }

    /// Looks at one collection; false when its index has to wait for a compaction.
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
            DesiredIndex::After(seconds) => seconds,
            DesiredIndex::Off | DesiredIndex::Gone => NEVER_SECONDS,
        };
        let create = plan.todo == IndexAction::Create;
        let carried_out = answered(apply_plan(database, plan, seconds)).await?;
        carried_out.map_err(|error| failure(&error))?;
        if create {
            self.build_index(database, seconds).await
        } else {
            Ok(true)
        }
    }

    fn is_building(&self, database: &str) -> bool {
        let building = lock(&self.building);
        building.as_deref() == Some(&*format!("{database}.{COOKIES}"))
    }

    /// Has the index of a collection made, beside everything else and without a deadline: of many millions of documents it
    /// takes minutes, in which the server goes on taking writes, and lookups leave out what has expired. One at a time;
    /// false when it is not done yet.
    async fn build_index(&self, database: &Database, seconds: i64) -> Result<bool, Failure> {
        let building = Arc::clone(&self.building);
        let namespace = format!("{}.{COOKIES}", database.name());
        {
            let mut building = lock(&building);
            if building.is_some() {
                return Ok(false);
            }
            *building = Some(namespace.clone());
        }
        tracing::info!(collection = namespace, "creating the index on t");
        let database = database.clone();
        let mut task = self.tasks.spawn(async move {
            let began = tokio::time::Instant::now();
            let made = create_index(&database, seconds).await;
            *lock(&building) = None;
            match &made {
                Ok(()) => {
                    tracing::info!(collection = namespace, took = ?began.elapsed(), "created the index on t");
                }
                Err(error) => {
                    let why = unavailable(error);
                    tracing::warn!(collection = namespace, %why, "cannot create the index on t, retrying");
                }
            }
            made
        });
        match timeout(BUILD_TIMEOUT, &mut task).await {
            Ok(Ok(made)) => made.map(|()| true).map_err(|error| failure(&error)),
            Ok(Err(error)) => Err(StoreError::Broken(format!("a task failed: {error}")).into()),
            Err(_) => Ok(false),
        }
    }
}

/// When the oldest cookie of a collection was accepted, in microseconds since the Unix epoch; `None` where there is none, or
/// where that cannot be told: without an index, say.
async fn oldest(database: &Database) -> Option<u64> {
    let command = doc! {
        "find": COOKIES,
        // What has no date is before all that have one.
        "filter": { "t": { "$gte": DateTime::from_millis(0) } },
        "sort": { "t": 1 },
        "hint": { "t": 1 },
        "projection": { "_id": 0, "t": 1 },
        "limit": 1,
        "singleBatch": true,
    };
    let answer = run(database.run_command(command)).await.ok()?;
    let found = answer.get_document("cursor").ok()?;
    let first = found.get_array("firstBatch").ok()?.first()?;
    let time = first.as_document()?.get_datetime("t").ok()?;
    let millis = u64::try_from(time.timestamp_millis()).ok()?;
    Some(millis.saturating_mul(1_000))
}

async fn list_indexes(database: &Database) -> Result<Vec<Document>, Failure> {
    // A collection has at most 64.
    let command = doc! { "listIndexes": COOKIES, "cursor": { "batchSize": 100 } };
    let answer = run(database.run_command(command)).await?;
    let cursor = answer.get_document("cursor").ok();
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
    tracing::info!(collection = namespace, index = name, "index on t dropped");
    // Writes wait behind it.
    let command = doc! { "dropIndexes": COOKIES, "index": name, "maxTimeMS": CHANGE_MILLIS };
    database.run_command(command).await.map(|_| ())
}

async fn apply_plan(database: &Database, plan: IndexPlan, seconds: i64) -> Result<(), Error> {
    for name in &plan.drop {
        drop_index(database, name).await?;
    }
    match &plan.todo {
        // What has to be made is not waited for here.
        IndexAction::Nothing | IndexAction::Create => Ok(()),
        IndexAction::Change(name) => {
            let change = doc! {
                "collMod": COOKIES,
                "index": { "name": name, "expireAfterSeconds": seconds },
                "maxTimeMS": CHANGE_MILLIS,
            };
            match database.run_command(change).await {
                // Before 5.1, an index that expires nothing cannot be changed.
                Err(error) if code(&error) == Some(INVALID_OPTIONS) => {
                    drop_index(database, name).await?;
                    create_index(database, seconds).await
                }
                changed => changed.map(|_| ()),
            }
        }
    }
}
