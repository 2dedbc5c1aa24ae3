//! What the consumer will not get, on record: database `cookiesync`, collection `losses`,
//! `{_id: {c: <consumer>, n: <place>}, record: <JSON>, at: <date noted>}`.

use mongodb::bson::{Bson, DateTime, Document, doc};

use super::{
    Inner,
    connection::{Connection, write},
    date,
};
use crate::{losses::Numbered, store::StoreError};

const COLLECTION: &str = "losses";

impl Inner {
    pub(super) async fn read_losses(&self) -> Result<Vec<Numbered>, StoreError> {
        let found = self.find_own(COLLECTION, self.own_ids("n")).await?;
        let records = found.iter().filter_map(|it| it.get_str("record").ok());
        Ok(records
            .filter_map(|record| serde_json::from_str(record).ok())
            .collect())
    }

    /// Writes records, each in its place. They are in the journal when what is written after them is.
    pub(super) async fn write_losses(
        &self,
        connection: &Connection,
        losses: &[Numbered],
    ) -> Result<(), StoreError> {
        let updates = losses.iter().map(|loss| {
            let place = i64::try_from(loss.place()).unwrap_or(i64::MAX);
            let record = serde_json::to_string(loss).expect("records are JSON");
            let at = date(loss.loss.noted_unix_micros);
            doc! {
                "q": { "_id": { "c": &self.options.name, "n": place } },
                "u": { "record": record, "at": at },
                "upsert": true,
            }
        });
        let updates: Vec<Document> = updates.collect();
        let command = doc! {
            "update": COLLECTION,
            "writeConcern": connection.concern(),
            "updates": updates,
        };
        write(&self.own_database(connection), command, "records of losses").await
    }

    /// Deletes the records of other consumers that were noted before this: its own are bounded.
    pub(super) async fn delete_losses(&self, before: DateTime) -> Result<(), StoreError> {
        let old = doc! { "_id.c": { "$ne": &self.options.name }, "at": { "$lt": before } };
        self.delete_own(COLLECTION, old).await
    }

    /// The range of all ids of this consumer whose second part is `key`.
    pub(super) fn own_ids(&self, key: &str) -> Document {
        let id = |second: Bson| doc! { "c": &self.options.name, key: second };
        doc! { "_id": { "$gte": id(Bson::MinKey), "$lte": id(Bson::MaxKey) } }
    }
}
