//! Deletions in MongoDB: database `cookiesync`, collection `deletions`, `{_id: {u: <user>, d: <DSP>}, t: <microseconds>}`, with
//! an empty user for a DSP (and `done` once its job has removed everything) and 0 for all DSPs of a user. The document `floor`
//! has the time up to which deletions were removed.
//!
//! A deletion is stored before the cookies that it covers are removed. A removal never concerns cookies accepted later,
//! so a command that timed out and is executed late is harmless. The cookies of a batch are written after its removals.

use std::{collections::BTreeMap, future::IntoFuture};

use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    COOKIES, Inner,
    connection::{Connection, run, with_timeout, write},
    date, deleted_before,
    error_class::{Failure, write_errors},
    number,
    sweep::DspScan,
};
use crate::{
    batch::Batch,
    deletions::{Deletion, Stored},
    store::StoreError,
};

const COLLECTION: &str = "deletions";

/// Maximum number of deletions per command.
const PER_COMMAND_MAX: usize = 1_000;

/// The document with the time up to which deletions were removed.
const FLOOR: &str = "floor";

impl Inner {
    pub(super) async fn read_deletions(&self) -> Result<Stored, StoreError> {
        let collection = self.own_collection(COLLECTION).await?;
        with_timeout(async {
            let mut stored = Stored::default();
            let mut found = collection.find(doc! {}).await?;
            while let Some(document) = found.try_next().await? {
                let Some(until) = document.get("t").and_then(number) else {
                    continue;
                };
                if document.get_str("_id").is_ok_and(|id| id == FLOOR) {
                    stored.floor_unix_micros = until;
                } else if let Some(deletion) = decode(&document, until) {
                    if deletion.is_of_dsp() && !document.get_bool("done").unwrap_or(false) {
                        stored.unfinished.push(deletion.clone());
                    }
                    stored.deletions.push(deletion);
                }
            }
            Ok(stored)
        })
        .await
    }

    /// Stores the deletions of a batch, and adds the DSPs that they concern to the DSPs whose collections are written.
    pub(super) async fn keep_deletions(
        &self,
        connection: &Connection,
        batch: &Batch,
        by_dsp: &mut BTreeMap<u32, Vec<u32>>,
    ) -> Result<(), StoreError> {
        let deletions = batch.latest_deletions();
        for part in deletions.chunks(PER_COMMAND_MAX) {
            let updates: Vec<Document> = part.iter().flat_map(keep).collect();
            let command = doc! {
                "update": COLLECTION,
                "updates": updates,
                "writeConcern": &connection.concern,
            };
            write(&self.own_database(connection), command, COLLECTION).await?;
        }
        let slots = self.dsps().slots.clone();
        for dsp_id in slots.into_iter().filter(|it| has_removals(batch, *it)) {
            by_dsp.entry(dsp_id).or_default();
        }
        Ok(())
    }

    /// Removes the cookies that the deletions of a batch cover from a DSP's collection.
    pub(super) async fn remove_deleted(
        &self,
        connection: &Connection,
        dsp_id: u32,
        batch: &Batch,
        mut replied: impl FnMut(),
    ) -> Result<(), Failure> {
        if batch.deletions().is_empty() {
            return Ok(());
        }
        let mut by_time: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for deletion in batch.deletions() {
            if deletion.concerns(dsp_id)
                && !deletion.is_of_dsp()
                && let Ok(user_id) = std::str::from_utf8(&deletion.user_id)
            {
                let users = by_time.entry(deletion.until_unix_micros).or_default();
                users.push(user_id);
            }
        }
        let database = self.database(connection, dsp_id);
        for (until, users) in by_time {
            for part in users.chunks(PER_COMMAND_MAX) {
                let covered = doc! { "_id": { "$in": part }, "t": { "$lte": date(until) } };
                let command = doc! {
                    "delete": COOKIES,
                    "ordered": false,
                    "deletes": [{ "q": covered, "limit": 0, "hint": { "_id": 1 } }],
                    "writeConcern": &connection.concern,
                };
                let reply = run(database.run_command(command)).await?;
                replied();
                if let Some(error) = write_errors(&reply)?.next() {
                    return Err(error.failure());
                }
            }
        }
        Ok(())
    }

    /// Removes all cookies of a DSP that were accepted up to a time.
    pub(super) async fn remove_dsp_cookies(
        &self,
        deletion: &Deletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        let connection = self.connection().await?;
        let mut removed = 0;
        if let Some(mut scan) = DspScan::begin(self, connection, deletion.dsp_id).await? {
            let before = deleted_before(deletion.until_unix_micros);
            loop {
                let began = Instant::now();
                let Some(now) = scan.step(before).await? else {
                    break;
                };
                removed += now;
                // The pauses keep the scan below half of the time.
                tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = sleep(began.elapsed()) => {}
                }
            }
        }
        let command = doc! {
            "update": COLLECTION,
            "updates": [{
                "q": { "_id": id(deletion), "t": micros(deletion.until_unix_micros) },
                "u": { "$set": { "done": true } },
            }],
            "writeConcern": connection.journaled(),
        };
        write(&self.own_database(connection), command, COLLECTION).await?;
        Ok(Some(removed))
    }

    pub(super) async fn delete_old_deletions(&self, floor: u64) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let command = doc! {
            "update": COLLECTION,
            "updates": [{
                "q": { "_id": FLOOR },
                "u": { "$max": { "t": micros(floor) } },
                "upsert": true,
            }],
            "writeConcern": connection.journaled(),
        };
        write(&self.own_database(connection), command, COLLECTION).await?;
        let old = doc! { "_id": { "$ne": FLOOR }, "t": { "$lte": micros(floor) } };
        let collection = self.own_collection(COLLECTION).await?;
        with_timeout(collection.delete_many(old).into_future()).await?;
        Ok(())
    }
}

/// Whether the deletions of a batch remove cookies from a DSP's collection.
pub(super) fn has_removals(batch: &Batch, dsp_id: u32) -> bool {
    let mut deletions = batch.deletions().iter();
    deletions.any(|it| it.concerns(dsp_id) && !it.is_of_dsp())
}

/// The operations that store a deletion, unless a later one is stored. A later deletion of a DSP resets `done`.
fn keep(deletion: &Deletion) -> Vec<Document> {
    let (id, until) = (id(deletion), micros(deletion.until_unix_micros));
    if deletion.is_of_dsp() {
        let (fresh, newer) = (doc! { "t": until, "done": false }, doc! { "$lt": until });
        vec![
            doc! { "q": { "_id": &id, "t": newer }, "u": { "$set": &fresh } },
            doc! { "q": { "_id": id }, "u": { "$setOnInsert": fresh }, "upsert": true },
        ]
    } else {
        let keep = doc! { "$max": { "t": until } };
        vec![doc! { "q": { "_id": id }, "u": keep, "upsert": true }]
    }
}

fn id(deletion: &Deletion) -> Document {
    let user_id = String::from_utf8_lossy(&deletion.user_id).into_owned();
    doc! { "u": user_id, "d": i64::from(deletion.dsp_id) }
}

fn micros(unix_micros: u64) -> i64 {
    i64::try_from(unix_micros).unwrap_or(i64::MAX)
}

fn decode(document: &Document, until_unix_micros: u64) -> Option<Deletion> {
    let id = document.get_document("_id").ok()?;
    Some(Deletion {
        user_id: id.get_str("u").ok()?.as_bytes().into(),
        dsp_id: u32::try_from(id.get_i64("d").ok()?).ok()?,
        until_unix_micros,
    })
}
