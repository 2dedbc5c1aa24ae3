//! Where the consumer stands, in the database it writes to: database `cookiesync`, collection `cursors`,
//! `{_id: {c: <consumer>, p: <producer>}, epoch, sequence, complete, at: <date committed>, by: <process>, n: <its commit>}`.

use std::{
    future::IntoFuture,
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
    connection::{Connection, in_time, primary, write},
    date, lock,
    retry_policy::{Failure, write_errors},
};
use crate::{
    batch::{Batch, Cursor},
    store::{Receipt, StoreError},
    ttl,
};

/// After the prefix of all databases.
const DATABASE: &str = "cookiesync";
const COLLECTION: &str = "cursors";

/// How old the cursors of other consumers are when these are taken to be gone: they were renamed or removed.
const GONE_AFTER: Duration = Duration::from_secs(90 * 86_400);

/// How soon a server answers that works.
pub(super) const WORKS_WITHIN: Duration = Duration::from_secs(1);

/// How long a check waits for the acknowledgment of others.
const ACKNOWLEDGED_MILLIS: i32 = 3_000;

/// The latest commit that had cursors, or what was loaded at the start.
#[derive(Debug, Clone, Default)]
pub(super) struct CommittedCursors(Vec<Cursor>);

impl CommittedCursors {
    /// Whether a server that has `found` may well have all that was committed: the same cursors, or those of a later commit
    /// whose answer was lost, which is the one of `batch`.
    fn is_within(&self, found: &[Cursor], batch: &Batch) -> bool {
        self.0.iter().all(|ours| {
            let mut found = found.iter().filter(|it| it.producer == ours.producer);
            found.any(|it| {
                let is_of_batch = |of: &Cursor| of.producer == it.producer && of.epoch == it.epoch;
                match it.position().partial_cmp(&ours.position()) {
                    Some(order) => order.is_ge(),
                    None => batch.cursors().iter().any(is_of_batch),
                }
            })
        })
    }
}

impl Inner {
    /// Reads the cursors, and notes them as durable. Fails for good when the server is none that can be written to.
    pub(super) async fn load_committed(&self) -> Result<Vec<Cursor>, StoreError> {
        self.server(self.connection().await?).await?;
        let cursors = self.read_cursors().await?;
        *lock(&self.committed) = CommittedCursors(cursors.clone());
        Ok(cursors)
    }

    /// Fails for good when the server lacks what was committed before: it, or another in its place, was set up anew,
    /// restored from a backup, or rolled back. Cookies since then are gone from it, which this process takes for stored.
    async fn check_cursors_kept(&self, batch: &Batch) -> Result<(), StoreError> {
        let found = self.read_cursors().await?;
        if lock(&self.committed).is_within(&found, batch) {
            return Ok(());
        }
        let why = "the server lacks what was durable in it before (was it restored, rolled back, or set up anew, or has another \
                   consumer this --name?): to be started again, which reads on from where the server stands";
        Err(StoreError::Broken(why.to_owned()))
    }

    /// Commits the cursors of a batch that was written to the server of `receipt`. A server that was started anew
    /// since may not have all of the batch: its journal has, from the commit on, what was acknowledged by itself.
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
            *lock(&self.committed) = CommittedCursors(batch.cursors().to_vec());
        }
        Ok(())
    }

    /// Which run of which server takes the writes, as far as is known.
    pub(super) async fn server(&self, connection: &Connection) -> Result<Receipt, StoreError> {
        let known = *lock(&self.server);
        match known {
            Some(server) => Ok(server),
            None => {
                let server = server_process(connection).await?;
                *lock(&self.server) = Some(server);
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
        *lock(&self.server) = Some(found);
        if found == expected {
            return Ok(());
        }
        let why = "the server was started anew, or another took over: what it may have lost is written again";
        Err(StoreError::Unavailable(why.to_owned()))
    }

    async fn commit_cursors(
        &self,
        connection: &Connection,
        cursors: &[Cursor],
    ) -> Result<(), StoreError> {
        let at = DateTime::now();
        // A command of this process that is executed late puts nothing back.
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
        // Where `w` is missing, the server fills in its default.
        let concern = connection.journaled();
        let command = doc! { "update": COLLECTION, "writeConcern": concern, "updates": updates };
        write(&self.own_database(connection), command, "cursors").await
    }

    /// Writes to where the cursors are, but changes nothing: a server that is not a primary, does not allow it, takes no
    /// writes (`fsyncLock`), or cannot acknowledge them, shows itself.
    pub(super) async fn check_writable(&self) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        self.write_nothing(connection, doc! { "wtimeout": ACKNOWLEDGED_MILLIS })
            .await
    }

    /// Whether the server can be written soon, so that what fails is a matter of one database.
    pub(super) async fn is_server_available(&self) -> bool {
        let check = timeout(WORKS_WITHIN, self.check_writable()).await;
        check.is_ok_and(|check| check.is_ok())
    }

    /// What came of one DSP's part of a task for all. Its trouble is noted in `failed`, and none of the others'; only that of
    /// the whole server is an error.
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

    /// Returns when all that was acknowledged before is in the journal.
    pub(super) async fn journal(&self, connection: &Connection) -> Result<(), StoreError> {
        self.write_nothing(connection, doc! { "j": true }).await
    }

    async fn write_nothing(
        &self,
        connection: &Connection,
        more_concern: Document,
    ) -> Result<(), StoreError> {
        let mut concern = connection.concern.clone();
        concern.extend(more_concern);
        let nobody = doc! { "_id": { "c": &self.options.name, "p": Bson::MinKey } };
        let command = doc! {
            "update": COLLECTION,
            "writeConcern": concern,
            "updates": [{ "q": nobody, "u": { "$set": { "at": DateTime::now() } } }],
        };
        let database = self.own_database(connection);
        let answer = in_time(database.run_command(command).into_future()).await?;
        match write_errors(&answer)?.next() {
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
        // First, so that no commit misses them. One that is committed meanwhile is not old any more.
        let is_left = |it: &Cursor| !found.iter().filter_map(decode_cursor).any(|of| of == *it);
        lock(&self.committed).0.retain(is_left);
        // Nobody accounts for these any more.
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

    /// The range of all ids of this consumer whose second part is `key`.
    pub(super) fn own_ids(&self, key: &str) -> Document {
        let id = |second: Bson| doc! { "c": &self.options.name, key: second };
        doc! { "_id": { "$gte": id(Bson::MinKey), "$lte": id(Bson::MaxKey) } }
    }

    /// Finds documents of a collection that does not hold cookies, in the order of their ids.
    pub(super) async fn find_own(
        &self,
        collection: &str,
        filter: Document,
    ) -> Result<Vec<Document>, StoreError> {
        let collection = self.own_collection(collection).await?;
        let found = collection
            .find(filter)
            .sort(doc! { "_id": 1 })
            .into_future();
        in_time(async { found.await?.try_collect().await }).await
    }

    /// Deletes documents of a collection that does not hold cookies.
    pub(super) async fn delete_own(
        &self,
        collection: &str,
        filter: Document,
    ) -> Result<(), StoreError> {
        let collection = self.own_collection(collection).await?;
        in_time(collection.delete_many(filter).into_future()).await?;
        Ok(())
    }

    pub(super) async fn own_collection(
        &self,
        collection: &str,
    ) -> Result<Collection<Document>, StoreError> {
        let connection = self.connection().await?;
        Ok(self.own_database(connection).collection(collection))
    }

    /// Where the consumer keeps what is not cookies.
    pub(super) fn own_database(&self, connection: &Connection) -> Database {
        let name = format!("{}{DATABASE}", self.options.prefix);
        // Whatever the URI prefers: what another server lags behind by must not be taken for lost.
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

/// The id of the server's process, new at each start; none tells the same where it has none.
async fn server_process(connection: &Connection) -> Result<Receipt, StoreError> {
    let admin = connection.client.database("admin");
    let hello = in_time(admin.run_command(doc! { "hello": 1 }).into_future()).await?;
    receipt_of(&hello)
}

fn receipt_of(hello: &Document) -> Result<Receipt, StoreError> {
    if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        let why = "--store leads to a mongos, which cannot tell whether what it wrote was lost since; name the mongod, or the \
                   replica set, of this node";
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
    fn receipt_is_the_process_of_a_server_and_a_router_has_none() {
        let id = ObjectId::from_bytes([7; 12]);
        let hello = doc! { "topologyVersion": { "processId": id, "counter": 0_i64 } };
        assert_eq!(receipt_of(&hello).unwrap(), Receipt([7; 12]));
        assert_eq!(receipt_of(&doc! {}).unwrap(), Receipt::default());
        let router = doc! { "msg": "isdbgrid", "topologyVersion": { "processId": id } };
        let why = receipt_of(&router).unwrap_err().to_string();
        assert!(why.contains("mongos"), "{why}");
    }

    #[test]
    fn later_commit_is_within_what_was_found_and_an_earlier_one_is_not() {
        let cursor = |epoch, sequence| Cursor {
            producer: "p".into(),
            epoch,
            sequence,
            complete: true,
        };
        let committed = CommittedCursors(vec![cursor(1, 50)]);
        let mut batch = Batch::new(1, 1);
        let within = |found: &[Cursor], batch: &Batch| committed.is_within(found, batch);
        assert!(within(&[cursor(1, 50)], &batch) && within(&[cursor(1, 60)], &batch));
        assert!(!within(&[], &batch) && !within(&[cursor(1, 40)], &batch));
        // The other epoch is that of the commit whose answer was lost, or else an older one.
        assert!(!within(&[cursor(2, 10)], &batch));
        batch.advance(&cursor(2, 10));
        assert!(within(&[cursor(2, 10)], &batch));
        assert!(CommittedCursors::default().is_within(&[], &batch));
    }
}
