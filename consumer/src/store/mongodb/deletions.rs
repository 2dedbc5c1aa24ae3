//! Deletions in MongoDB: database `cookiesync`, collection `deletions`, `{_id: {u: <user>, d: <DSP>}, t: <microseconds>}`. `u` is
//! empty if the deletion covers a whole DSP; `d` is 0 if it covers all DSPs of a user. `done` is the time up to which the job that
//! deletes a whole DSP has removed its cookies. The document with an empty `u` and with 0 as `d` is the floor: cookies accepted up
//! to `t` count as deleted, because older deletions were removed.
//!
//! A deletion is stored before the cookies that it covers are removed. A removal never affects cookies accepted later, so a
//! removal that the server executes late, after its timeout, is harmless. The cookies of a batch are written after its removals.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt};
use mongodb::bson::{Bson, Document, doc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    connection::{Connection, run, write},
    deleted_before,
    error_class::Failure,
    number,
    sweep::{DELETES_PER_COMMAND_MAX, Documents, delete, expired},
};
use crate::{
    batch::Batch,
    deletions::{Deletion, Deletions, StoredDeletion},
    store::StoreError,
};

const COLLECTION: &str = "deletions";

/// Number of documents that are read at a time.
const PAGE: usize = 5_000;

impl Inner {
    /// Adds the stored deletions to a table. Each page has its own deadline.
    pub(super) async fn read_deletions(&self, deletions: &Deletions) -> Result<(), StoreError> {
        let collection = self.own_collection(COLLECTION).await?;
        let mut found = run(collection.find(doc! {})).await?;
        loop {
            let page = found.by_ref().take(PAGE).try_collect::<Vec<_>>();
            let page = run(page).await?;
            if page.is_empty() {
                return Ok(());
            }
            deletions.load(page.iter().filter_map(decode));
        }
    }

    /// Sets the time `field` of deletions, unless it is later.
    async fn put_deletions(
        &self,
        deletions: &[Deletion],
        field: &str,
        concern: &Document,
    ) -> Result<(), StoreError> {
        let database = self.own_database(self.connection().await?);
        for part in deletions.chunks(DELETES_PER_COMMAND_MAX) {
            let updates = part.iter().map(|deletion| {
                doc! {
                    "q": { "_id": id(deletion) },
                    "u": { "$max": { field: micros(deletion.until_unix_micros) } },
                    "upsert": true,
                }
            });
            let command = doc! {
                "update": COLLECTION,
                "updates": updates.collect::<Vec<_>>(),
                "writeConcern": concern,
            };
            write(&database, command, COLLECTION).await?;
        }
        Ok(())
    }

    /// Stores the deletions of a batch, and adds the DSPs from which they remove cookies to `by_dsp`.
    pub(super) async fn keep_deletions(
        &self,
        connection: &Connection,
        batch: &Batch,
        by_dsp: &mut BTreeMap<u32, Vec<u32>>,
    ) -> Result<(), StoreError> {
        self.put_deletions(batch.deletions(), "t", &connection.concern)
            .await?;
        let slots = self.dsps.lock().slots.clone();
        for dsp_id in batch.dsps_with_removals(&slots) {
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
        let deletions = batch.deletions().iter();
        let deletions = deletions.filter(|it| it.removes_from(dsp_id));
        let users = deletions.map(|it| {
            let user_id = String::from_utf8_lossy(&it.user_id).into_owned();
            (deleted_before(it.until_unix_micros), user_id.into())
        });
        let mut users: Vec<(u64, Bson)> = users.collect();
        users.sort_by_key(|(before, _)| *before);
        let database = self.database(connection, dsp_id);
        for part in users.chunks(DELETES_PER_COMMAND_MAX) {
            delete(connection, &database, part).await?;
            replied();
        }
        Ok(())
    }

    /// Removes all cookies of a DSP that were accepted up to a time.
    pub(super) async fn remove_dsp_cookies(
        &self,
        deletion: &Deletion,
        stop: &CancellationToken,
    ) -> Result<Option<u64>, StoreError> {
        self.breakers.may_try(deletion.dsp_id)?;
        let connection = self.connection().await?;
        let database = self.database(connection, deletion.dsp_id);
        let before = deleted_before(deletion.until_unix_micros);
        let mut removed = 0;
        if self.has_cookies(&database).await? {
            let mut documents = Documents::begin(connection, database.clone()).await?;
            while !documents.is_at_end() {
                let began = Instant::now();
                let found = documents.next(PAGE).await?;
                for part in expired(found, |_| before).chunks(DELETES_PER_COMMAND_MAX) {
                    removed += delete(connection, &database, part).await?;
                }
                // The scan runs for less than half of the time.
                tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = sleep(began.elapsed()) => {}
                }
            }
        }
        let finished = std::slice::from_ref(deletion);
        self.put_deletions(finished, "done", &connection.journaled())
            .await?;
        Ok(Some(removed))
    }

    pub(super) async fn delete_old_deletions(&self, floor: u64) -> Result<(), StoreError> {
        let concern = self.connection().await?.journaled();
        self.put_deletions(&[Deletion::floor(floor)], "t", &concern)
            .await?;
        let is_finished = doc! { "$expr": { "$gte": ["$done", "$t"] } };
        let old = doc! {
            "t": { "$lt": micros(floor) },
            "$or": [{ "_id.u": { "$ne": "" } }, is_finished],
        };
        self.delete_own(COLLECTION, old).await
    }
}

fn id(deletion: &Deletion) -> Document {
    let user_id = String::from_utf8_lossy(&deletion.user_id).into_owned();
    doc! { "u": user_id, "d": i64::from(deletion.dsp_id) }
}

fn micros(unix_micros: u64) -> i64 {
    i64::try_from(unix_micros).unwrap_or(i64::MAX)
}

fn decode(document: &Document) -> Option<StoredDeletion> {
    let id = document.get_document("_id").ok()?;
    let until_unix_micros = number(document.get("t")?)?;
    let done = document.get("done").and_then(number).unwrap_or_default();
    Some(StoredDeletion {
        deletion: Deletion {
            user_id: id.get_str("u").ok()?.as_bytes().into(),
            dsp_id: u32::try_from(id.get_i64("d").ok()?).ok()?,
            until_unix_micros,
        },
        is_finished: done >= until_unix_micros,
    })
}
