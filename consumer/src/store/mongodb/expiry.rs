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
//! With an index, deletions are counted from the collection's "remove calls" in `collStats`: the TTL monitor's are among them,
//! updates are not (measured with 6.0.5). Somebody else's deletions while the window is open count too.

mod plan;

use std::{
    collections::BTreeMap,
    future::IntoFuture,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Database,
    bson::{Bson, DateTime, Document, doc},
    error::Error,
};
use tokio::time::timeout;

use super::{
    COOKIES, ExpiryMode, INVALID_OPTIONS, Inner, NAMESPACE_NOT_FOUND, NEVER_SECONDS, collection,
    connection::{Connection, answered},
    lock, number,
    retry_policy::{Failure, code, failure, unavailable},
    sweep::{Record, Records},
};
use crate::store::{Expired, Expiry, StoreError};
use plan::{NAME, Plan, Todo, Wanted, plan};

/// How long the server may wait for a lock before it gives a change up, and lets writes go on.
const CHANGE_MILLIS: i32 = 5_000;

/// How long the making of an index is waited for before all else goes on.
const BUILD_PATIENCE: Duration = Duration::from_secs(2);

/// What is known of the window and of deletions.
#[derive(Debug, Default)]
pub(super) struct State {
    counting: Mutex<Counting>,
    /// Deletions not reported yet.
    deleted: AtomicU64,
    /// The collection whose index is being made; at most one.
    building: Arc<Mutex<Option<String>>>,
}

/// Deletions count from the first look at an open window to the second at a shut one, so that a pass of the TTL
/// monitor that had begun counts to its end.
#[derive(Debug, Default)]
struct Counting {
    looks_left: u8,
    /// Remove calls at the last look, by namespace.
    removals: BTreeMap<String, u64>,
}

impl Inner {
    /// Creates the collection of a DSP, which creates its database; with its index, where cookies expire by one. The index
    /// expires nothing until the next look at all collections, as by day. If this ends between the two, or the collection is there
    /// already, that look creates the index: with millions of documents it takes minutes.
    pub(super) async fn make_slot(
        &self,
        connection: &Connection,
        dsp_id: u32,
    ) -> Result<(), Failure> {
        let database = self.database(connection, dsp_id);
        match list_indexes(&database).await? {
            Ok(_) => {}
            Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => {
                let mode = self.mode_of_server(connection).await?;
                let made = answered(async {
                    collection::create(&database).await?;
                    match mode {
                        ExpiryMode::Index => create_index(&database, NEVER_SECONDS).await,
                        ExpiryMode::Sweep => Ok(()),
                    }
                });
                made.await?.map_err(|error| failure(&error))?;
            }
            Err(error) => return Err(failure(&error)),
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
        let records = self.read_records(connection).await?;
        let mut expired = self.set_indexes(connection, expiry, &records).await?;
        if self.options.expiry == ExpiryMode::Sweep && expiry.open {
            let swept = self.sweep(expiry, records, &mut expired.failed).await?;
            let (complete, any) = swept;
            if any && self.other_owner().await?.is_none() {
                let records = self.read_records(connection).await?;
                let failed = expired.failed.take();
                expired = self.set_indexes(connection, expiry, &records).await?;
                expired.failed = failed.or(expired.failed);
            }
            expired.complete &= complete;
        }
        Ok(expired)
    }

    /// What the index of a collection is to be, which may have been swept.
    fn wanted(&self, dsp_id: u32, expiry: &Expiry<'_>, swept: Option<&Record>) -> Wanted {
        match self.options.expiry {
            ExpiryMode::Index if expiry.open || swept.is_none() => {
                Wanted::After(self.expire_after_seconds(dsp_id, expiry.open))
            }
            ExpiryMode::Sweep if expiry.open && swept.is_some_and(Record::is_swept) => Wanted::Gone,
            ExpiryMode::Index | ExpiryMode::Sweep => Wanted::Off,
        }
    }

    /// Gives the index of each of our collections the state of the window, also of those that appeared meanwhile,
    /// and counts what was deleted.
    async fn set_indexes(
        &self,
        connection: &Connection,
        expiry: &Expiry<'_>,
        records: &Records,
    ) -> Result<Expired, StoreError> {
        let Expiry {
            open, now, stop, ..
        } = *expiry;
        let mut expired = Expired {
            complete: true,
            ..Expired::default()
        };
        let failed = &mut expired.failed;
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            let database = self.database(connection, dsp_id);
            let namespace = format!("{}.{COOKIES}", database.name());
            let swept = records.get(&namespace);
            let wanted = self.wanted(dsp_id, expiry, swept);
            let has_cookies = self.has_cookies(&database).await;
            if self.of_one(has_cookies, failed).await? != Some(true) {
                continue;
            }
            if stop.is_cancelled() {
                expired.complete = false;
                return Ok(self.deleted(expired));
            }
            let look = self.look_at(connection, &database, open, wanted);
            let looked = match look.await {
                Ok(looked) => looked,
                Err(error) if self.works_elsewhere().await => {
                    failed.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
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
            match looked {
                Ok(done) => {
                    expired.complete &= done;
                    if done && swept.is_some() && matches!(wanted, Wanted::After(_)) {
                        self.forget_record(connection, &namespace).await?;
                    }
                }
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => {}
                // It may concern this DSP alone.
                Err(error) if code(&error).is_some() => {
                    let name = database.name();
                    let why = unavailable(&error);
                    let why = format!("the index of {name}.{COOKIES}: {why}");
                    failed.get_or_insert(StoreError::Unavailable(why));
                }
                Err(error) => return Err(unavailable(&error)),
            }
        }
        if expired.failed.is_none() {
            self.counted(open, expired.complete);
        }
        Ok(self.deleted(expired))
    }

    /// With what was found to be deleted.
    fn deleted(&self, expired: Expired) -> Expired {
        Expired {
            deleted: self.expiry.deleted.swap(0, Ordering::Relaxed),
            ..expired
        }
    }

    /// Looks at one collection; false when its index has to wait for a compaction.
    async fn look_at(
        &self,
        connection: &Connection,
        database: &Database,
        open: bool,
        wanted: Wanted,
    ) -> Result<Result<bool, Error>, StoreError> {
        let indexes = match list_indexes(database).await? {
            Ok(indexes) => indexes,
            Err(error) => return Ok(Err(error)),
        };
        let (seconds, is_counted) = match wanted {
            Wanted::After(seconds) => (seconds, true),
            Wanted::Off | Wanted::Gone => (NEVER_SECONDS, false),
        };
        // Counted before it begins to delete, and after it ends.
        if open && is_counted {
            self.count(database, true).await?;
        }
        let plan = plan(&indexes, wanted);
        let done = if plan == Plan::default() {
            true
        } else if self.is_building(database.name())
            || self.is_compacting(connection, database.name()).await?
        {
            false
        } else {
            let create = plan.todo == Todo::Create;
            if let Err(error) = carry_out(database, plan, seconds).await? {
                return Ok(Err(error));
            }
            if create {
                match self.build_index(database, seconds).await? {
                    Ok(done) => done,
                    Err(error) => return Ok(Err(error)),
                }
            } else {
                true
            }
        };
        if !open && is_counted {
            self.count(database, false).await?;
        }
        Ok(Ok(done))
    }

    fn is_building(&self, database: &str) -> bool {
        let building = lock(&self.expiry.building);
        building.as_deref() == Some(&*format!("{database}.{COOKIES}"))
    }

    /// Has the index of a collection made, beside everything else and without a deadline: of many millions of documents it
    /// takes minutes, in which the server goes on taking writes, and lookups leave out what has expired. One at a time;
    /// false when it is not done yet.
    async fn build_index(
        &self,
        database: &Database,
        seconds: i64,
    ) -> Result<Result<bool, Error>, StoreError> {
        let building = Arc::clone(&self.expiry.building);
        let namespace = format!("{}.{COOKIES}", database.name());
        {
            let mut building = lock(&building);
            if building.is_some() {
                return Ok(Ok(false));
            }
            *building = Some(namespace.clone());
        }
        tracing::info!(collection = namespace, "the index on t is being made");
        let database = database.clone();
        let mut task = self.tasks.spawn(async move {
            let began = tokio::time::Instant::now();
            let made = create_index(&database, seconds).await;
            *lock(&building) = None;
            match &made {
                Ok(()) => {
                    tracing::info!(collection = namespace, took = ?began.elapsed(), "the index on t is made");
                }
                Err(error) => {
                    let why = unavailable(error);
                    tracing::warn!(collection = namespace, %why, "the index on t was not made, trying again");
                }
            }
            made
        });
        match timeout(BUILD_PATIENCE, &mut task).await {
            Ok(Ok(made)) => Ok(made.map(|()| true)),
            Ok(Err(error)) => Err(StoreError::Broken(format!("a task failed: {error}"))),
            Err(_) => Ok(Ok(false)),
        }
    }

    /// Adds what was deleted since the last look, if deletions count now.
    async fn count(&self, database: &Database, open: bool) -> Result<(), StoreError> {
        if !open && lock(&self.expiry.counting).looks_left == 0 {
            return Ok(());
        }
        let stats = database.run_command(doc! { "collStats": COOKIES });
        let stats = answered(stats.into_future()).await?;
        // Where it may not be asked for, nothing is counted.
        let Some(now) = stats.ok().as_ref().and_then(remove_calls) else {
            return Ok(());
        };
        let name = format!("{}.{COOKIES}", database.name());
        let last = lock(&self.expiry.counting).removals.insert(name, now);
        if let Some(last) = last {
            let deleted = removed(last, now);
            self.expiry.deleted.fetch_add(deleted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Notes that a look at all collections has ended.
    fn counted(&self, open: bool, complete: bool) {
        let mut counting = lock(&self.expiry.counting);
        if open {
            counting.looks_left = 2;
        } else if complete {
            counting.looks_left = counting.looks_left.saturating_sub(1);
        }
        if counting.looks_left == 0 {
            counting.removals.clear();
        }
    }
}

/// How many were removed between two readings of a counter that begins anew when the server does.
fn removed(last: u64, now: u64) -> u64 {
    now.checked_sub(last).unwrap_or(now)
}

fn remove_calls(stats: &Document) -> Option<u64> {
    let cursor = stats.get_document("wiredTiger").ok()?;
    number(cursor.get_document("cursor").ok()?.get("remove calls")?)
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
    let answer = answered(database.run_command(command).into_future()).await;
    let answer = answer.ok()?.ok()?;
    let found = answer.get_document("cursor").ok()?;
    let first = found.get_array("firstBatch").ok()?.first()?;
    let time = first.as_document()?.get_datetime("t").ok()?;
    let millis = u64::try_from(time.timestamp_millis()).ok()?;
    Some(millis.saturating_mul(1_000))
}

async fn list_indexes(database: &Database) -> Result<Result<Vec<Document>, Error>, StoreError> {
    // A collection has at most 64.
    let command = doc! { "listIndexes": COOKIES, "cursor": { "batchSize": 100 } };
    let answer = answered(database.run_command(command).into_future()).await?;
    Ok(answer.map(|answer| {
        let cursor = answer.get_document("cursor").ok();
        let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch").ok());
        let documents = batch.into_iter().flatten().filter_map(Bson::as_document);
        documents.cloned().collect()
    }))
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

async fn carry_out(
    database: &Database,
    plan: Plan,
    seconds: i64,
) -> Result<Result<(), Error>, StoreError> {
    answered(async {
        for name in &plan.drop {
            drop_index(database, name).await?;
        }
        match &plan.todo {
            // What has to be made is not waited for here.
            Todo::Nothing | Todo::Create => Ok(()),
            Todo::Change(name) => {
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
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_that_went_back_began_anew() {
        assert_eq!(removed(5, 7), 2);
        assert_eq!(removed(5, 5), 0);
        assert_eq!(removed(5, 3), 3);
        let stats = doc! { "wiredTiger": { "cursor": { "remove calls": 7 } } };
        assert_eq!(remove_calls(&stats), Some(7));
        assert_eq!(remove_calls(&doc! {}), None);
    }
}
