//! Deletions in MongoDB: database `cookiesync`, collection `deletions`, `{_id: {u: <user>, d: <DSP>}, t: <microseconds>}`. `u` is
//! empty if the deletion covers a whole DSP; `d` is 0 if it covers all DSPs of a user. `done` is the time up to which the job that
//! deletes a whole DSP has removed its cookies. The document with an empty `u` and with 0 as `d` is the floor: cookies accepted up
//! to `t` count as deleted, because older deletions were removed.
//!
//! A deletion is stored before the cookies that it covers are removed. A removal never affects cookies accepted later, so a
//! removal that the server executes late, after its timeout, is harmless. The cookies of a batch are written after its removals.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt};
use mongodb::bson::{Document, doc};
use proto::{
    units::{DspId, UnixMicros},
    wire::Scope,
};

use super::super::{
    MongodbStore,
    connection::{Connection, run, write},
    documents::DELETES_PER_COMMAND_MAX,
    int, number,
};
use crate::{
    batch::Batch,
    deletions::{Deletion, Deletions, StoredDeletion},
    store::StoreError,
};

pub(in super::super) const COLLECTION: &str = "deletions";

/// Number of documents that are read at a time.
const PAGE: usize = 5_000;

impl MongodbStore {
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
    pub(in super::super) async fn put_deletions(
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
                    "u": { "$max": { field: int(deletion.until.0) } },
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
        by_dsp: &mut BTreeMap<DspId, Vec<u32>>,
    ) -> Result<(), StoreError> {
        self.put_deletions(batch.deletions(), "t", &connection.concern)
            .await?;
        let slots = self.dsps.lock().slots.clone();
        for dsp_id in batch.dsps_with_removals(&slots) {
            by_dsp.entry(dsp_id).or_default();
        }
        Ok(())
    }
}

fn id(deletion: &Deletion) -> Document {
    let (user_id, dsp_id) = deletion.ids();
    doc! { "u": String::from_utf8_lossy(user_id).into_owned(), "d": i64::from(dsp_id.0) }
}

pub(in super::super) fn decode(document: &Document) -> Option<StoredDeletion> {
    let id = document.get_document("_id").ok()?;
    let until = number(document.get("t")?)?;
    let done = document.get("done").and_then(number).unwrap_or_default();
    Some(StoredDeletion {
        deletion: Deletion {
            scope: Scope::from_ids(
                id.get_str("u").ok()?.as_bytes().into(),
                DspId(u32::try_from(id.get_i64("d").ok()?).ok()?),
            ),
            until: UnixMicros(until),
        },
        is_finished: done >= until,
    })
}
