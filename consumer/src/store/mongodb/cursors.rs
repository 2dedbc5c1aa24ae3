//! The cursors in MongoDB: database `cookiesync`, collection `cursors`,
//! `{_id: {c: <consumer>, p: <producer>}, epoch, sequence, complete, at: <commit date>, by: <process>, n: <commit number>}`.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Bson, DateTime, Document, doc},
    options::DatabaseOptions,
};
use runtime::unix_micros;
use tokio::time::timeout;

use super::{
    Inner,
    connection::{Connection, primary, run, write},
    date,
    error_class::{Failure, write_errors},
};
use crate::{
    batch::{Batch, Cursor},
    store::{Receipt, StoreError},
    ttl,
};

/// The database name after its prefix.
const DATABASE: &str = "cookiesync";
const COLLECTION: &str = "cursors";

/// Age at which cursors of other consumers are deleted: these consumers were renamed or removed.
const GONE_AFTER: Duration = Duration::from_secs(90 * 86_400);

/// Maximum response time of an available server.
pub(super) const AVAILABLE_WITHIN: Duration = Duration::from_secs(1);

/// Timeout of a check for the acknowledgment of other members.
const ACKNOWLEDGE_MILLIS: i32 = 3_000;

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

impl Inner {
    /// Loads the cursors, and records them as durable. Fails permanently if the server is unsupported.
    pub(super) async fn load_committed(&self) -> Result<Vec<Cursor>, StoreError> {
        self.server(self.connection().await?).await?;
        let cursors = self.read_cursors().await?;
        *self.committed.lock() = cursors.clone();
        Ok(cursors)
    }

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

    /// Commits the cursors of a batch that was written to the server process of `receipt`. If the server was restarted
    /// in between, parts of the batch may be lost: the journal covers only writes that the same process acknowledged.
    pub(super) async fn commit_batch(
        &self,
        batch: &Batch,
        receipt: Receipt,
    ) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let _commit = self.commit_times.begin();
        self.check_server(connection, receipt).await?;
        self.check_cursors_kept(batch).await?;
        if !batch.cursors().is_empty() {
            self.commit_cursors(connection, batch.cursors()).await?;
        }
        self.check_server(connection, receipt).await?;
        if !batch.cursors().is_empty() {
            *self.committed.lock() = batch.cursors().to_vec();
        }
        Ok(())
    }

    /// The server process that receives the writes.
    pub(super) async fn server(&self, connection: &Connection) -> Result<Receipt, StoreError> {
        let known = *self.server.lock();
        match known {
            Some(server) => Ok(server),
            None => {
                let server = server_process(connection).await?;
                *self.server.lock() = Some(server);
                Ok(server)
            }
        }
    }

    pub(super) async fn check_server(
        &self,
        connection: &Connection,
        expected: Receipt,
    ) -> Result<(), StoreError> {
        let found = server_process(connection).await?;
        *self.server.lock() = Some(found);
        if found == expected {
            return Ok(());
        }
        let why = "the server restarted or another member took over; repeating writes that may have been lost";
        Err(StoreError::Unavailable(why.to_owned()))
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
                let sequence = i64::try_from(cursor.sequence).unwrap_or(i64::MAX);
                doc! {
                    "q": { "_id": { "c": &self.options.name, "p": &*cursor.producer } },
                    "u": [{ "$replaceWith": { "$cond": [is_late.clone(), "$$ROOT", {
                        "_id": "$_id",
                        "epoch": cursor.epoch.to_string(),
                        "sequence": sequence,
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
        let command = doc! { "update": COLLECTION, "writeConcern": concern, "updates": updates };
        write(&self.own_database(connection), command, "cursors").await
    }

    /// Checks that the collection of cursors is writable, without changing it. Detects a server that is not a primary, lacks
    /// permissions, blocks writes (`fsyncLock`), or cannot acknowledge them.
    pub(super) async fn check_writable(&self) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        self.write_no_op(connection, doc! { "wtimeout": ACKNOWLEDGE_MILLIS })
            .await
    }

    /// Whether the server responds to writes. Then a failure concerns only one database.
    pub(super) async fn is_server_available(&self) -> bool {
        let check = timeout(AVAILABLE_WITHIN, self.check_writable()).await;
        check.is_ok_and(|check| check.is_ok())
    }

    /// Isolates the failure of one DSP in an operation on all DSPs: stores it in `failed` and returns `None`.
    ///
    /// # Errors
    /// When the whole server fails.
    pub(super) async fn isolate<T>(
        &self,
        result: Result<T, Failure>,
        failed: &mut Option<StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let error = match result {
            Ok(done) => return Ok(Some(done)),
            Err(Failure::Dsp(why)) => StoreError::Unavailable(why),
            Err(Failure::Server(error)) if self.is_server_available().await => error,
            Err(Failure::Server(error)) => return Err(error),
        };
        failed.get_or_insert(error);
        Ok(None)
    }

    /// Waits until all acknowledged writes are in the journal.
    pub(super) async fn journal(&self, connection: &Connection) -> Result<(), StoreError> {
        self.write_no_op(connection, doc! { "j": true }).await
    }

    async fn write_no_op(
        &self,
        connection: &Connection,
        more_concern: Document,
    ) -> Result<(), StoreError> {
        let mut concern = connection.concern.clone();
        concern.extend(more_concern);
        let no_match = doc! { "_id": { "c": &self.options.name, "p": Bson::MinKey } };
        let command = doc! {
            "update": COLLECTION,
            "writeConcern": concern,
            "updates": [{ "q": no_match, "u": { "$set": { "at": DateTime::now() } } }],
        };
        let database = self.own_database(connection);
        let reply = run(database.run_command(command)).await?;
        match write_errors(&reply)?.next() {
            None => Ok(()),
            Some(error) => Err(StoreError::Unavailable(error.explain())),
        }
    }

    async fn read_cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        let found = self.find_own(COLLECTION, self.own_ids("p")).await?;
        Ok(found.iter().filter_map(decode_cursor).collect())
    }

    pub(super) async fn delete_cursors(&self, before: u64) -> Result<Vec<Arc<str>>, StoreError> {
        let mut old = self.own_ids("p");
        old.insert("at", doc! { "$lt": date(before) });
        let found = self.find_own(COLLECTION, old.clone()).await?;
        // First, so that no commit considers deleted cursors as lost. A cursor committed in between is no longer old.
        let is_kept = |it: &Cursor| !found.iter().filter_map(decode_cursor).any(|of| of == *it);
        self.committed.lock().retain(is_kept);
        // Also deletes the state of consumers that no longer exist.
        let gone = ttl::before(unix_micros(), GONE_AFTER);
        let gone = gone.min(before);
        self.delete_abandoned_retries(gone).await?;
        let gone = doc! { "at": { "$lt": date(gone) } };
        self.delete_own(COLLECTION, gone).await?;
        if !found.is_empty() {
            self.delete_own(COLLECTION, old).await?;
        }
        let producers = found.iter().filter_map(decode_cursor);
        Ok(producers.map(|cursor| cursor.producer).collect())
    }

    /// The range of all ids of this consumer with the second field `key`.
    pub(super) fn own_ids(&self, key: &str) -> Document {
        let id = |second: Bson| doc! { "c": &self.options.name, key: second };
        doc! { "_id": { "$gte": id(Bson::MinKey), "$lte": id(Bson::MaxKey) } }
    }

    /// Finds documents of a collection in the own database, ordered by id.
    pub(super) async fn find_own(
        &self,
        collection: &str,
        filter: Document,
    ) -> Result<Vec<Document>, StoreError> {
        let collection = self.own_collection(collection).await?;
        let found = collection.find(filter).sort(doc! { "_id": 1 });
        Ok(run(async { found.await?.try_collect().await }).await?)
    }

    /// Deletes documents of a collection in the own database.
    pub(super) async fn delete_own(
        &self,
        collection: &str,
        filter: Document,
    ) -> Result<(), StoreError> {
        let collection = self.own_collection(collection).await?;
        run(collection.delete_many(filter)).await?;
        Ok(())
    }

    pub(super) async fn own_collection(
        &self,
        collection: &str,
    ) -> Result<Collection<Document>, StoreError> {
        let connection = self.connection().await?;
        Ok(self.own_database(connection).collection(collection))
    }

    /// The database of everything except cookies.
    pub(super) fn own_database(&self, connection: &Connection) -> Database {
        let name = format!("{}{DATABASE}", self.options.prefix);
        // Regardless of the URI: the lag of a secondary must not look like a loss.
        let options = DatabaseOptions::builder().selection_criteria(primary());
        let client = &connection.client;
        client.database_with_options(&name, options.build())
    }
}

fn decode_cursor(document: &Document) -> Option<Cursor> {
    let id = document.get_document("_id").ok()?;
    Some(Cursor {
        producer: id.get_str("p").ok()?.into(),
        epoch: document.get_str("epoch").ok()?.parse().ok()?,
        sequence: u64::try_from(document.get_i64("sequence").ok()?).ok()?,
        complete: document.get_bool("complete").unwrap_or(false),
    })
}

/// The id of the server process, which changes at each start. Empty if the server has none.
async fn server_process(connection: &Connection) -> Result<Receipt, StoreError> {
    let admin = connection.client.database("admin");
    let hello = run(admin.run_command(doc! { "hello": 1 })).await?;
    receipt_of(&hello)
}

fn receipt_of(hello: &Document) -> Result<Receipt, StoreError> {
    if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        let why = "--store is a mongos, which hides restarts of its servers; use the mongod or replica set of this node";
        return Err(StoreError::Broken(why.to_owned()));
    }
    let process = hello.get_document("topologyVersion");
    let process = process.and_then(|version| version.get_object_id("processId"));
    Ok(process.map_or_else(|_| Receipt::default(), |id| Receipt(id.bytes())))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::oid::ObjectId;

    use super::*;

    #[test]
    fn receipt_is_the_server_process_and_a_mongos_is_rejected() {
        let id = ObjectId::from_bytes([7; 12]);
        let hello = doc! { "topologyVersion": { "processId": id, "counter": 0_i64 } };
        assert_eq!(receipt_of(&hello).unwrap(), Receipt([7; 12]));
        assert_eq!(receipt_of(&doc! {}).unwrap(), Receipt::default());
        let router = doc! { "msg": "isdbgrid", "topologyVersion": { "processId": id } };
        let why = receipt_of(&router).unwrap_err().to_string();
        assert!(why.contains("mongos"), "{why}");
    }

    #[test]
    fn server_with_earlier_cursors_has_lost_commits() {
        let cursor = |epoch, sequence| Cursor {
            producer: "p".into(),
            epoch,
            sequence,
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
