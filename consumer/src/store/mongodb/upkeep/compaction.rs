//! Compaction: reclaims the space of deleted cookies with `compact`, one collection at a time, least recently compacted first.
//!
//! A collection is compacted if the server would reclaim space: WiredTiger skips files smaller than 1 MiB, or with less than a
//! tenth of reusable space. After a compaction that reclaimed less than a tenth of the reusable bytes, these must first grow
//! by a quarter ([`is_worthwhile`]).
//!
//! Compactions are recorded in the collection `maintenance` of the database of cursors: `{_id: <namespace>, at: <date>,
//! seconds, reusable, freed}`. So no compaction is repeated in the same window, even after a restart or by another consumer.
//!
//! To stop a compaction, the store requests that the server kill the operation, which is identified by its comment. MongoDB
//! 6.0.5 ignores this request and `maxTimeMS`, and finishes the compaction (measured); other versions may stop. If the
//! server's list of operations shows a running compaction of a collection, even one of an earlier process, the store skips
//! this collection.

use std::{
    collections::HashMap,
    future::IntoFuture,
    time::{Duration, Instant},
};

use mongodb::{
    Database,
    bson::{Bson, Document, doc},
    error::Error,
};
use proto::units::DspId;
use tokio_util::sync::CancellationToken;

use super::super::{
    COOKIES, MongodbStore,
    connection::{Connection, run},
    databases::namespace,
    date,
    error_class::{Failure, failure},
    int, number,
};
use crate::store::{Compaction, StoreError};

/// The collection of compaction records and of the maintenance owner.
pub(super) const RECORDS: &str = "maintenance";

/// The server skips smaller files.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// Divisor of the file size: the server skips files with fewer reusable bytes than the quotient.
const REUSABLE_DIVISOR: u64 = 10;

/// The last compaction of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastCompaction {
    at_millis: i64,
    reusable: u64,
    freed: u64,
}

/// Whether to compact a collection with this number of [`reusable`] bytes.
fn is_worthwhile(reusable: u64, last: Option<LastCompaction>) -> bool {
    let was_ineffective = |last: LastCompaction| last.freed < last.reusable / 10;
    let grew = |last: LastCompaction| reusable > last.reusable + last.reusable / 4;
    reusable > 0 && last.is_none_or(|last| !was_ineffective(last) || grew(last))
}

/// Bytes that a compaction may reclaim: unused bytes in those files of a collection and its indexes that the server
/// would compact.
fn reusable(stats: &Document) -> u64 {
    let indexes = stats.get_document("indexDetails").ok();
    let indexes = indexes.into_iter().flat_map(Document::values);
    let files = indexes
        .filter_map(Bson::as_document)
        .chain(stats.get_document("wiredTiger"));
    files.filter_map(reusable_of_file).sum()
}

fn reusable_of_file(file: &Document) -> Option<u64> {
    let blocks = file.get_document("block-manager").ok()?;
    let size = number(blocks.get("file size in bytes")?)?;
    let free = number(blocks.get("file bytes available for reuse")?)?;
    (size > FILE_BYTES_MIN && free > size / REUSABLE_DIVISOR).then_some(free)
}

impl MongodbStore {
    pub(super) async fn compact_all(&self, compaction: Compaction<'_>) -> Result<bool, StoreError> {
        let connection = self.connection().await?;
        let mut complete = true;
        let mut failed = None;
        let to_compact = self.to_compact(connection, &compaction, &mut failed);
        for (dsp_id, last) in to_compact.await? {
            if compaction.stop.is_cancelled() {
                return Ok(false);
            }
            let database = self.database(connection, dsp_id);
            let collection = CollectionCompaction {
                store: self,
                connection,
                namespace: namespace(&database),
                database,
            };
            let compacted = collection.compact(last, &compaction).await;
            if compacted.is_err() && compaction.stop.is_cancelled() {
                return Ok(false);
            }
            complete &= self.isolate(compacted, &mut failed).await? != Some(false);
        }
        failed.map_or(Ok(complete), Err)
    }

    /// The collections that are due, least recently compacted first.
    async fn to_compact(
        &self,
        connection: &Connection,
        compaction: &Compaction<'_>,
        failed: &mut Option<StoreError>,
    ) -> Result<Vec<(DspId, Option<LastCompaction>)>, StoreError> {
        let records = self.find_own(RECORDS, doc! {}).await?;
        let records: HashMap<&str, LastCompaction> = records.iter().filter_map(decode).collect();
        // Ignores records in the future: a clock was ahead when they were written.
        let now = compaction.clock.now().as_millisecond();
        let recently = date(compaction.since).timestamp_millis()..=now;
        let mut found = Vec::new();
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            let database = self.database(connection, dsp_id);
            let has_cookies = self.has_cookies(&database).await;
            if self.isolate(has_cookies, failed).await? != Some(true) {
                continue;
            }
            let namespace = namespace(&database);
            let last = records.get(&*namespace).copied();
            if last.is_none_or(|last| !recently.contains(&last.at_millis)) {
                found.push((dsp_id, last));
            }
        }
        found.sort_by_key(|(_, last)| last.map(|last| last.at_millis));
        Ok(found)
    }

    /// Whether a collection is being compacted, by any process.
    pub(super) async fn is_compacting(
        &self,
        connection: &Connection,
        database: &str,
    ) -> Result<bool, StoreError> {
        let found = operations(
            connection,
            doc! { "command.compact": COOKIES, "command.$db": database },
        );
        Ok(!found.await?.is_empty())
    }
}

/// The ids of this user's operations that match the filter.
async fn operations(connection: &Connection, filter: Document) -> Result<Vec<Bson>, StoreError> {
    let mut command = doc! { "currentOp": 1, "$ownOps": true };
    command.extend(filter);
    let admin = connection.client.database("admin");
    let reply = run(admin.run_command(command)).await?;
    let found = reply.get_array("inprog").ok();
    let found = found.into_iter().flatten().filter_map(Bson::as_document);
    Ok(found
        .filter_map(|found| found.get("opid").cloned())
        .collect())
}

fn decode(record: &Document) -> Option<(&str, LastCompaction)> {
    let last = LastCompaction {
        at_millis: record.get_datetime("at").ok()?.timestamp_millis(),
        reusable: record.get("reusable").and_then(number)?,
        freed: record.get("freed").and_then(number)?,
    };
    Some((record.get_str("_id").ok()?, last))
}

/// The compaction of one collection.
struct CollectionCompaction<'a> {
    store: &'a MongodbStore,
    connection: &'a Connection,
    namespace: String,
    database: Database,
}

impl CollectionCompaction<'_> {
    /// Compacts the collection if enough space is reusable. Returns false if another compaction of it is running.
    async fn compact(
        &self,
        last: Option<LastCompaction>,
        compaction: &Compaction<'_>,
    ) -> Result<bool, Failure> {
        let stats = run(self.database.run_command(doc! { "collStats": COOKIES })).await?;
        let reusable = reusable(&stats);
        if !is_worthwhile(reusable, last) {
            tracing::debug!(
                collection = self.namespace,
                reusable,
                "skipped a collection with little reusable space"
            );
            return Ok(true);
        }
        let is_compacting = self
            .store
            .is_compacting(self.connection, self.database.name());
        if is_compacting.await? {
            return Ok(false);
        }
        let began = Instant::now();
        let compacted = self.run(compaction.stop).await;
        let reply = compacted.map_err(|error| failure(&error))?;
        let took = began.elapsed();
        let freed = reply.get("bytesFreed").and_then(number);
        let freed = freed.unwrap_or_default();
        tracing::info!(
            collection = self.namespace,
            ?took,
            reusable_bytes = reusable,
            freed_bytes = freed,
            "collection compacted"
        );
        (compaction.report)(took, freed);
        let record = doc! {
            "at": date(compaction.clock.unix_micros()),
            "seconds": took.as_secs_f64(),
            "reusable": int(reusable),
            "freed": int(freed),
        };
        self.store.put_own(RECORDS, &self.namespace, record).await?;
        Ok(true)
    }

    /// Runs the command without a deadline. When `stop` is cancelled, requests that the server kill it.
    async fn run(&self, stop: &CancellationToken) -> Result<Document, Error> {
        let comment = format!(
            "cookiesync: {} compacts {}",
            self.store.options.name, self.namespace
        );
        // Required on the primary of a replica set.
        let compact = doc! { "compact": COOKIES, "force": true, "comment": &comment };
        let mut compact = self.database.run_command(compact).into_future();
        tokio::select! {
            biased;
            done = &mut compact => return done,
            () = stop.cancelled() => {}
        }
        if let Err(error) = self.kill(&comment).await {
            tracing::warn!(collection = self.namespace, %error, "failed to stop a compaction");
        }
        compact.await
    }

    async fn kill(&self, comment: &str) -> Result<(), StoreError> {
        let admin = self.connection.client.database("admin");
        for operation in operations(self.connection, doc! { "command.comment": comment }).await? {
            let kill = doc! { "killOp": 1, "op": operation };
            run(admin.run_command(kill)).await?;
            tracing::info!(
                collection = self.namespace,
                "sent a request to stop a compaction; the compaction may still finish"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(reusable: u64, last: Option<(u64, u64)>, expected: bool) {
        let last = last.map(|(reusable, freed)| LastCompaction {
            at_millis: 0,
            reusable,
            freed,
        });
        assert_eq!(is_worthwhile(reusable, last), expected);
    }

    #[test]
    fn ineffective_compaction_is_repeated_when_more_is_reusable() {
        check(0, None, false);
        check(1, None, true);
        check(0, Some((100, 50)), false);
        check(100, Some((100, 10)), true);
        check(100, Some((100, 9)), false);
        check(125, Some((100, 9)), false);
        check(126, Some((100, 9)), true);
    }

    #[test]
    fn only_files_that_the_server_compacts_are_reusable() {
        let file = |size: i64, free: i32| {
            doc! { "block-manager": {
                "file size in bytes": size,
                "file bytes available for reuse": free,
            } }
        };
        let stats = doc! {
            "wiredTiger": file(100 << 20, 20 << 20),
            "indexDetails": {
                "_id_": file(10 << 20, 2 << 20),
                "dense": file(10 << 20, 1 << 20),
                "small": file(1 << 20, 1 << 19),
            },
        };
        assert_eq!(reusable(&stats), 22 << 20);
        assert_eq!(reusable(&doc! {}), 0);
    }
}
