//! Cookies in MongoDB, and the cursors: database `cookiesync`, collection `cursors`,
//! `{_id: {c: <consumer>, p: <producer>}, epoch, sequence, complete, at: <commit date>, by: <process>, n: <commit number>}`.

pub mod command;

mod batch_write;
pub(super) mod deletions;
pub(super) mod insert_strategy;
mod write;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use mongodb::bson::{DateTime, Document, doc};
use proto::units::{Epoch, Sequence};

pub(super) use batch_write::by_dsp;

use super::{
    CURSORS, MongodbStore,
    connection::{Connection, write as run_write},
    int,
    server::ACKNOWLEDGE_MILLIS,
};
use crate::{
    batch::{Batch, Cursor},
    deletions::Deletions,
    store::{Cookies, Receipt, StoreError, StoredState, WriteOutcome},
};

/// Whether a server with the cursors `found` has all commits. `committed` are the cursors of the latest commit, or those
/// loaded at startup. The server may also have the cursors of `batch`, if the response to their commit was lost.
fn has_commits(found: &[Cursor], committed: &[Cursor], batch: &Batch) -> bool {
    committed.iter().all(|committed| {
        let mut found = found.iter().filter(|it| it.producer == committed.producer);
        found.any(|it| {
            let is_same_epoch = |of: &Cursor| of.producer == it.producer && of.epoch == it.epoch;
            match it.position().partial_cmp(&committed.position()) {
                Some(order) => order.is_ge(),
                None => batch.cursors().iter().any(is_same_epoch),
            }
        })
    })
}

#[async_trait]
impl Cookies for MongodbStore {
    /// Fails permanently if the server is unsupported.
    async fn load(&self, deletions: &Deletions) -> Result<StoredState, StoreError> {
        self.server(self.connection().await?).await?;
        let cursors = self.read_cursors().await?;
        *self.committed.lock() = cursors.clone();
        let slots = self.read_slots().await?;
        self.read_deletions(deletions).await?;
        Ok(StoredState { cursors, slots })
    }

    async fn write(&self, batch: Arc<Batch>) -> Result<WriteOutcome, StoreError> {
        self.write_batch(&batch).await
    }

    /// If the server was restarted since the write, parts of the batch may be lost: the journal covers only writes that
    /// the same process acknowledged.
    async fn commit(&self, batch: &Batch, receipt: Receipt) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let _commit = self.commit_times.begin();
        self.check_server(connection, receipt).await?;
        self.check_cursors_kept(batch).await?;
        if !batch.cursors().is_empty() {
            self.commit_cursors(connection, batch.cursors()).await?;
        } else if batch.copied() > 0 {
            self.journal(connection).await?;
        }
        self.check_server(connection, receipt).await?;
        if !batch.cursors().is_empty() {
            *self.committed.lock() = batch.cursors().to_vec();
        }
        Ok(())
    }

    /// Detects a server that is not a primary, lacks permissions, blocks writes (`fsyncLock`), or cannot acknowledge them: the
    /// collection of cursors must be writable.
    async fn ping(&self) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        self.write_no_op(connection, doc! { "wtimeout": ACKNOWLEDGE_MILLIS })
            .await
    }

    fn hang_timeout(&self) -> Option<Duration> {
        None
    }
}

impl MongodbStore {
    /// Fails permanently if the server has lost commits, because it was replaced, restored from a backup, or rolled back. Such a
    /// server has also lost cookies that this process considers stored.
    async fn check_cursors_kept(&self, batch: &Batch) -> Result<(), StoreError> {
        let found = self.read_cursors().await?;
        if has_commits(&found, &self.committed.lock(), batch) {
            return Ok(());
        }
        let why = "the server lost committed cursors: it was restored, rolled back or replaced, or another consumer uses this --name; \
                   restart this consumer to resume from the cursors on the server";
        Err(StoreError::Broken(why.to_owned()))
    }

    async fn commit_cursors(
        &self,
        connection: &Connection,
        cursors: &[Cursor],
    ) -> Result<(), StoreError> {
        let at = DateTime::now();
        // A command of this process that the server executes late must not reset a cursor.
        let (by, number) = (self.started, self.commits.fetch_add(1, Ordering::Relaxed));
        let is_late = doc! { "$and": [{ "$eq": ["$by", by] }, { "$gt": ["$n", number] }] };
        let updates: Vec<Document> = cursors
            .iter()
            .map(|cursor| {
                doc! {
                    "q": { "_id": { "c": &self.options.name, "p": &*cursor.producer } },
                    "u": [{ "$replaceWith": { "$cond": [is_late.clone(), "$$ROOT", {
                        "_id": "$_id",
                        "epoch": cursor.epoch.to_string(),
                        "sequence": int(cursor.sequence.0),
                        "complete": cursor.complete,
                        "at": at,
                        "by": by,
                        "n": number,
                    }] } }],
                    "upsert": true,
                }
            })
            .collect();
        // If `w` is missing, the server uses its default.
        let concern = connection.journaled();
        let command = doc! { "update": CURSORS, "writeConcern": concern, "updates": updates };
        run_write(&self.own_database(connection), command, CURSORS).await
    }

    async fn read_cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        let found = self.find_own(CURSORS, self.own_ids("p")).await?;
        Ok(found.iter().filter_map(decode_cursor).collect())
    }
}

pub(super) fn decode_cursor(document: &Document) -> Option<Cursor> {
    let id = document.get_document("_id").ok()?;
    Some(Cursor {
        producer: id.get_str("p").ok()?.into(),
        epoch: Epoch(document.get_str("epoch").ok()?.parse().ok()?),
        sequence: Sequence(u64::try_from(document.get_i64("sequence").ok()?).ok()?),
        complete: document.get_bool("complete").unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_with_earlier_cursors_has_lost_commits() {
        let cursor = |epoch, sequence| Cursor {
            producer: "p".into(),
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            complete: true,
        };
        let committed = [cursor(1, 50)];
        let mut batch = Batch::new(1, 1);
        let is_contained = |found: &[Cursor], batch: &Batch| has_commits(found, &committed, batch);
        assert!(is_contained(&[cursor(1, 50)], &batch) && is_contained(&[cursor(1, 60)], &batch));
        assert!(!is_contained(&[], &batch) && !is_contained(&[cursor(1, 40)], &batch));
        // A different epoch is either that of the batch whose response was lost, or an older one.
        assert!(!is_contained(&[cursor(2, 10)], &batch));
        batch.advance(&cursor(2, 10));
        assert!(is_contained(&[cursor(2, 10)], &batch));
        assert!(has_commits(&[], &[], &batch));
    }
}
