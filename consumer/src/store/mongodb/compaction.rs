//! Giving back the space of deleted cookies: `compact`, one collection after another, the one compacted longest ago
//! first.
//!
//! Worth it is what the server itself would do something about: WiredTiger leaves a file alone that is smaller than
//! 1 MiB, or of which less than a tenth can be reused. Where the last compaction freed less than a tenth of what
//! seemed reusable, it takes a quarter more than then to try again ([`is_worth_it`]).
//!
//! What was done is kept beside the cursors, in the collection `maintenance`:
//! `{_id: <namespace>, at: <date>, seconds, reusable, freed}`, so that nothing is done twice in a night, no matter who
//! does it and however often it is restarted.
//!
//! When it has to stop, the server is asked to kill our operation, found by its comment. MongoDB 6.0.5 takes no
//! notice, nor of `maxTimeMS`, and finishes by itself (measured); others may stop. A compaction that still runs, also
//! of a process that is gone, is seen in the server's list of operations and neither begun again nor disturbed.

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
use tokio_util::sync::CancellationToken;

use super::{
    COOKIES, Inner,
    connection::{Connection, in_time, run},
    date, number,
    retry_policy::{Failure, failure},
};
use crate::store::{Compaction, StoreError};

/// Of what was done, and of who does it.
pub(super) const RECORDS: &str = "maintenance";

/// A smaller file is left alone by the server.
const FILE_BYTES_MIN: u64 = 1 << 20;

/// The least part of a file, as its divisor, that can be reused for the server to compact it.
const REUSABLE_PART: u64 = 10;

/// What the last compaction of a collection did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastCompaction {
    at_millis: i64,
    reusable: u64,
    freed: u64,
}

/// Whether to compact a collection of which so many bytes are [`reusable`] now.
fn is_worth_it(reusable: u64, last: Option<LastCompaction>) -> bool {
    let was_in_vain = |last: LastCompaction| last.freed < last.reusable / 10;
    let grew = |last: LastCompaction| reusable > last.reusable + last.reusable / 4;
    reusable > 0 && last.is_none_or(|last| !was_in_vain(last) || grew(last))
}

/// Bytes that a compaction may free: those nobody uses in the files of a collection and its indexes, as far as the
/// server would compact the file.
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
    (size > FILE_BYTES_MIN && free > size / REUSABLE_PART).then_some(free)
}

impl Inner {
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
            let one = CollectionCompaction {
                store: self,
                connection,
                namespace: format!("{}.{COOKIES}", database.name()),
                database,
            };
            let compacted = one.compact(last, &compaction).await;
            if compacted.is_err() && compaction.stop.is_cancelled() {
                return Ok(false);
            }
            complete &= self.isolate(compacted, &mut failed).await? != Some(false);
        }
        failed.map_or(Ok(complete), Err)
    }

    /// What was not compacted since then, beginning with what was never.
    async fn to_compact(
        &self,
        connection: &Connection,
        compaction: &Compaction<'_>,
        failed: &mut Option<StoreError>,
    ) -> Result<Vec<(u32, Option<LastCompaction>)>, StoreError> {
        let records = self.find_own(RECORDS, doc! {}).await?;
        let records: HashMap<&str, LastCompaction> = records.iter().filter_map(decode).collect();
        // One that is said to be later than now was recorded by a clock that was ahead.
        let now = compaction.clock.now().as_millisecond();
        let recently = date(compaction.since).timestamp_millis()..=now;
        let mut found = Vec::new();
        for dsp_id in self.list(connection, Duration::ZERO).await? {
            let database = self.database(connection, dsp_id);
            let has_cookies = self.has_cookies(&database).await;
            if self.isolate(has_cookies, failed).await? != Some(true) {
                continue;
            }
            let namespace = format!("{}.{COOKIES}", database.name());
            let last = records.get(&*namespace).copied();
            if last.is_none_or(|last| !recently.contains(&last.at_millis)) {
                found.push((dsp_id, last));
            }
        }
        found.sort_by_key(|(_, last)| last.map(|last| last.at_millis));
        Ok(found)
    }

    /// Whether a collection is being compacted, by whomever.
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

/// The ids of the operations, of the same user, that are like this.
async fn operations(connection: &Connection, filter: Document) -> Result<Vec<Bson>, StoreError> {
    let mut command = doc! { "currentOp": 1, "$ownOps": true };
    command.extend(filter);
    let admin = connection.client.database("admin");
    let answer = in_time(admin.run_command(command).into_future()).await?;
    let found = answer.get_array("inprog").ok();
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
    store: &'a Inner,
    connection: &'a Connection,
    namespace: String,
    database: Database,
}

impl CollectionCompaction<'_> {
    /// Compacts it if that is worth it; false where somebody else's compaction of it is running.
    async fn compact(
        &self,
        last: Option<LastCompaction>,
        compaction: &Compaction<'_>,
    ) -> Result<bool, Failure> {
        let stats = run(self.database.run_command(doc! { "collStats": COOKIES })).await?;
        let reusable = reusable(&stats);
        if !is_worth_it(reusable, last) {
            tracing::debug!(
                collection = self.namespace,
                reusable,
                "not worth compacting"
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
        let answer = compacted.map_err(|error| failure(&error))?;
        let took = began.elapsed();
        let freed = answer.get("bytesFreed").and_then(number);
        let freed = freed.unwrap_or_default();
        tracing::info!(
            collection = self.namespace,
            ?took,
            reusable_bytes = reusable,
            freed_bytes = freed,
            "collection compacted"
        );
        (compaction.report)(took, freed);
        let int = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let record = doc! {
            "at": date(compaction.clock.unix_micros()),
            "seconds": took.as_secs_f64(),
            "reusable": int(reusable),
            "freed": int(freed),
        };
        let records = self.store.own_collection(RECORDS).await?;
        let replace = records
            .replace_one(doc! { "_id": &self.namespace }, record)
            .upsert(true);
        in_time(replace.into_future()).await?;
        Ok(true)
    }

    /// Has no deadline, but asks the server to end it when `stop` is cancelled.
    async fn run(&self, stop: &CancellationToken) -> Result<Document, Error> {
        let comment = format!(
            "cookiesync: {} compacts {}",
            self.store.options.name, self.namespace
        );
        // The primary of a replica set wants to be forced.
        let compact = doc! { "compact": COOKIES, "force": true, "comment": &comment };
        let mut compact = self.database.run_command(compact).into_future();
        tokio::select! {
            biased;
            done = &mut compact => return done,
            () = stop.cancelled() => {}
        }
        if let Err(error) = self.kill(&comment).await {
            tracing::warn!(collection = self.namespace, %error, "cannot stop a compaction");
        }
        compact.await
    }

    async fn kill(&self, comment: &str) -> Result<(), StoreError> {
        let admin = self.connection.client.database("admin");
        for operation in operations(self.connection, doc! { "command.comment": comment }).await? {
            let kill = doc! { "killOp": 1, "op": operation };
            in_time(admin.run_command(kill).into_future()).await?;
            tracing::info!(
                collection = self.namespace,
                "compaction was told to stop; the server may finish it all the same"
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
        assert_eq!(is_worth_it(reusable, last), expected);
    }

    #[test]
    fn what_was_in_vain_is_tried_again_when_there_is_more_to_gain() {
        check(0, None, false);
        check(1, None, true);
        check(0, Some((100, 50)), false);
        check(100, Some((100, 10)), true);
        check(100, Some((100, 9)), false);
        check(125, Some((100, 9)), false);
        check(126, Some((100, 9)), true);
    }

    #[test]
    fn reusable_is_what_the_server_would_compact() {
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
