//! Which DSPs have a database, and when the newest cookie of each was accepted: database `cookiesync`, collection `dsps`,
//! `{_id: <DSP>, t: <date>, made: <whether a consumer made the database>, leaving: <whether it is being removed>}`. Consumers of
//! one server share it.
//!
//! A database that a consumer made, whose cookies have all expired and are deleted, is removed while expiry is open. Only
//! empty collections of ours are dropped, never a database: it goes with its last collection. No cookie is lost by it: the
//! collection is renamed first, after which nobody can write there, and what is found in it then is written back; by the next
//! attempt if this one is interrupted, whether the DSP has come back meanwhile or not.

use std::{collections::BTreeMap, future::IntoFuture, time::Duration};

use futures_util::TryStreamExt;
use mongodb::{
    Collection, Database,
    bson::{Document, RawDocumentBuf, doc},
};
use runtime::unix_micros;
use tokio_util::sync::CancellationToken;

use super::{
    COOKIES, Inner, collection,
    connection::{Connection, answered, in_time, primary, run},
    date,
    retry_policy::{Failure, failure, write_errors},
};
use crate::{dsp_slots::DspSlot, store::StoreError};

const RECORDS: &str = "dsps";

/// Of a record: the collection may have been renamed.
const IS_LEAVING: &str = "leaving";

/// What a collection is called before it is dropped.
const LEAVING: &str = "cookies_leaving";

impl Inner {
    /// The DSPs that have a database: with what is recorded of each, or as of now.
    pub(super) async fn read_slots(&self) -> Result<Vec<DspSlot>, StoreError> {
        let connection = self.connection().await?;
        let dsps = self.list(connection, Duration::ZERO).await?;
        self.dsps().slots.extend(&dsps);
        let newest = self.newest(connection).await?;
        let now = unix_micros();
        let slots = dsps.into_iter();
        Ok(slots
            .map(|dsp_id| (dsp_id, newest.get(&dsp_id).copied().unwrap_or(now)))
            .collect())
    }

    /// What is recorded of each DSP.
    pub(super) async fn newest(
        &self,
        connection: &Connection,
    ) -> Result<BTreeMap<u32, u64>, StoreError> {
        let records = self.dsp_records(connection);
        let found = records.find(doc! {}).into_future();
        let found: Vec<Document> = in_time(async { found.await?.try_collect().await }).await?;
        Ok(found.iter().filter_map(decode).collect())
    }

    pub(super) async fn record_slots(
        &self,
        connection: &Connection,
        slots: &[DspSlot],
    ) -> Result<(), StoreError> {
        let updates: Vec<Document> = slots
            .iter()
            .map(|&(dsp_id, newest)| {
                doc! {
                    "q": { "_id": i64::from(dsp_id) },
                    "u": { "$max": { "t": date(newest) } },
                    "upsert": true,
                }
            })
            .collect();
        let command = doc! { "update": RECORDS, "ordered": false, "updates": updates };
        let command = RawDocumentBuf::try_from(&command)
            .map_err(|error| StoreError::Broken(error.to_string()))?;
        let answer = run(&self.own_database(connection), command).await?;
        match write_errors(&answer)?.next() {
            None => Ok(()),
            Some(error) => Err(error.failure().into()),
        }
    }

    /// Notes that a consumer makes the database of a DSP, if there is none yet.
    pub(super) async fn note_made(
        &self,
        connection: &Connection,
        dsp_id: u32,
        database: &Database,
    ) -> Result<(), Failure> {
        if !names(database).await?.is_empty() {
            return Ok(());
        }
        let made = doc! { "$set": { "made": true } };
        let records = self.dsp_records(connection);
        let noted = records.update_one(id(dsp_id), made).upsert(true);
        in_time(noted.into_future()).await?;
        Ok(())
    }

    /// Removes the databases of DSPs whose cookies have all expired at `now` and are deleted.
    pub(super) async fn remove_empty(
        &self,
        now: u64,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let connection = self.connection().await?;
        let records = self.dsp_records(connection);
        let made = records.find(doc! { "made": true }).into_future();
        let made: Vec<Document> = in_time(async { made.await?.try_collect().await }).await?;
        let mut failed = None;
        for record in &made {
            let Some((dsp_id, newest)) = decode(record) else {
                continue;
            };
            if stop.is_cancelled() {
                break;
            }
            let is_alive = newest >= self.options.ttls.expired_before(dsp_id, now);
            let removed = if !is_alive && !self.options.lookup.listed.contains(&dsp_id) {
                self.remove_if_empty(connection, dsp_id, newest).await
            } else if record.get_bool(IS_LEAVING).unwrap_or(false) {
                self.end_removal(connection, dsp_id).await
            } else {
                continue;
            };
            self.of_one(removed, &mut failed).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    async fn remove_if_empty(
        &self,
        connection: &Connection,
        dsp_id: u32,
        newest: u64,
    ) -> Result<(), Failure> {
        let database = self.database(connection, dsp_id);
        let mut there = names(&database).await?;
        if there.iter().any(|name| name == LEAVING) {
            self.end_removal(connection, dsp_id).await?;
            there = names(&database).await?;
        }
        if there.iter().any(|name| name != COOKIES) {
            return Ok(());
        }
        if !there.is_empty() {
            let collection = database.collection::<Document>(COOKIES);
            // What is dropped must be empty where it is written.
            let one = collection.find_one(doc! {}).selection_criteria(primary());
            if answered(one.into_future())
                .await?
                .map_err(|error| failure(&error))?
                .is_some()
            {
                return Ok(());
            }
            // From here on its cookies are set aside, and a slot is made for them anew.
            self.dsps().slots.remove(&dsp_id);
            let records = self.dsp_records(connection);
            let noted = records.update_one(id(dsp_id), doc! { "$set": { IS_LEAVING: true } });
            in_time(noted.into_future()).await?;
            let name = database.name();
            let rename = doc! {
                "renameCollection": format!("{name}.{COOKIES}"),
                "to": format!("{name}.{LEAVING}"),
            };
            let admin = connection.client.database("admin");
            let renamed = answered(admin.run_command(rename).into_future()).await?;
            renamed.map_err(|error| failure(&error))?;
            self.end_removal(connection, dsp_id).await?;
        }
        let records = self.dsp_records(connection);
        // Unless it has come back meanwhile.
        let left = doc! { "_id": i64::from(dsp_id), "t": { "$lte": date(newest) } };
        in_time(records.delete_one(left).into_future()).await?;
        let namespace = format!("{}.{COOKIES}", database.name());
        self.forget_position(connection, &namespace).await?;
        tracing::info!(dsp_id, "the empty database of a DSP is removed");
        Ok(())
    }

    /// Drops the collection that was renamed, if there is one, after writing back what came into it meanwhile.
    async fn end_removal(&self, connection: &Connection, dsp_id: u32) -> Result<(), Failure> {
        let database = &self.database(connection, dsp_id);
        let leaving = database.collection::<Document>(LEAVING);
        let found = leaving.find(doc! {}).selection_criteria(primary());
        let found = found.into_future();
        let found: Vec<Document> = in_time(async { found.await?.try_collect().await }).await?;
        let updates = found.iter().filter_map(|document| {
            let (user, time) = (document.get("_id")?, document.get("t")?);
            Some(doc! {
                "q": { "_id": user, "t": { "$lte": time } },
                "u": { "$set": document },
                "upsert": true,
            })
        });
        let updates: Vec<Document> = updates.collect();
        if !updates.is_empty() {
            // They would make it with pages of MongoDB's own sizes.
            let made = answered(collection::create(database)).await?;
            made.map_err(|error| failure(&error))?;
            let command = doc! { "update": COOKIES, "ordered": false, "updates": updates };
            let command = RawDocumentBuf::try_from(&command)
                .map_err(|error| StoreError::Broken(error.to_string()))?;
            for error in write_errors(&run(database, command).await?)? {
                // There is a newer one.
                if !error.is_duplicate_id {
                    return Err(error.failure());
                }
            }
        }
        let dropped = answered(leaving.drop().into_future()).await?;
        dropped.map_err(|error| failure(&error))?;
        let records = self.dsp_records(connection);
        let ended = records.update_one(id(dsp_id), doc! { "$unset": { IS_LEAVING: "" } });
        in_time(ended.into_future()).await?;
        Ok(())
    }

    pub(super) fn dsp_records(&self, connection: &Connection) -> Collection<Document> {
        self.own_database(connection).collection(RECORDS)
    }
}

fn id(dsp_id: u32) -> Document {
    doc! { "_id": i64::from(dsp_id) }
}

/// Everything in a database, views too.
async fn names(database: &Database) -> Result<Vec<String>, Failure> {
    let names = answered(database.list_collection_names().into_future()).await?;
    names.map_err(|error| failure(&error))
}

fn decode(record: &Document) -> Option<DspSlot> {
    let dsp_id = u32::try_from(record.get_i64("_id").ok()?).ok()?;
    let newest = record.get_datetime("t").ok()?.timestamp_millis();
    Some((dsp_id, u64::try_from(newest).ok()?.saturating_mul(1_000)))
}
