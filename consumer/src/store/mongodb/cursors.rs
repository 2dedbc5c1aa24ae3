//! Where the consumer stands, in the database it writes to: database `cookiesync`, collection `cursors`,
//! `{_id: {c: <consumer>, p: <producer>}, epoch, sequence, complete, at: <date committed>}`.

use std::{future::IntoFuture, sync::Arc};

use futures_util::TryStreamExt;
use mongodb::{
    Collection,
    bson::{Bson, DateTime, Document, RawDocumentBuf, doc},
};

use super::{
    MongodbStore,
    connection::{Connection, WriteConcern, in_time, run, write_errors},
    date,
};
use crate::{batch::Cursor, store::StoreError};

const DATABASE: &str = "cookiesync";
const COLLECTION: &str = "cursors";

impl MongodbStore {
    pub(super) async fn commit(
        &self,
        connection: &Connection,
        cursors: &[Cursor],
    ) -> Result<(), StoreError> {
        let at = DateTime::now();
        let updates: Vec<Document> = cursors
            .iter()
            .map(|cursor| {
                let sequence = i64::try_from(cursor.sequence).unwrap_or(i64::MAX);
                doc! {
                    "q": { "_id": { "c": &self.name, "p": &*cursor.producer } },
                    "u": { "$set": {
                        "epoch": cursor.epoch.to_string(),
                        "sequence": sequence,
                        "complete": cursor.complete,
                        "at": at,
                    } },
                    "upsert": true,
                }
            })
            .collect();
        // Where `w` is missing, the server fills in its default.
        let concern = connection.concern.as_ref().map(WriteConcern::document);
        let mut concern = concern.unwrap_or_default();
        concern.insert("j", true);
        let command = doc! { "update": COLLECTION, "writeConcern": concern, "updates": updates };
        let command = RawDocumentBuf::try_from(&command)
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        let database = connection.client.database(DATABASE);
        let answer = run(&database, command).await?;
        match write_errors(&answer)?.next() {
            None => Ok(()),
            Some(error) => Err(StoreError::Unavailable(format!(
                "cursors refused with code {}: {}",
                error.code, error.message
            ))),
        }
    }

    pub(super) async fn read_cursors(&self) -> Result<Vec<Cursor>, StoreError> {
        let connection = self.connection().await?;
        let cursors = self.cursors(connection);
        let found = cursors.find(self.cursor_ids()).into_future();
        let found: Vec<Document> = in_time(async { found.await?.try_collect().await }).await?;
        Ok(found.iter().filter_map(decode_cursor).collect())
    }

    pub(super) async fn delete_cursors(&self, before: u64) -> Result<Vec<Arc<str>>, StoreError> {
        let cursors = self.cursors(self.connection().await?);
        let mut old = self.cursor_ids();
        old.insert("at", doc! { "$lt": date(before) });
        let found = cursors.find(old.clone()).into_future();
        let found: Vec<Document> = in_time(async { found.await?.try_collect().await }).await?;
        if !found.is_empty() {
            // One that was committed since is not old any more.
            in_time(cursors.delete_many(old).into_future()).await?;
        }
        let producers = found.iter().filter_map(decode_cursor);
        Ok(producers.map(|cursor| cursor.producer).collect())
    }

    fn cursors(&self, connection: &Connection) -> Collection<Document> {
        let database = connection.client.database(DATABASE);
        database.collection(COLLECTION)
    }

    /// The range of all ids of this consumer.
    fn cursor_ids(&self) -> Document {
        doc! { "_id": {
            "$gte": { "c": &self.name, "p": Bson::MinKey },
            "$lte": { "c": &self.name, "p": Bson::MaxKey },
        } }
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
