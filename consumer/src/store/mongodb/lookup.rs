//! Lookups of users, and the list of DSP databases.

use std::{
    collections::BTreeSet,
    future::IntoFuture,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use mongodb::{
    Database,
    bson::{Bson, DateTime, doc, rawdoc},
};
use proto::ids;
use runtime::unix_micros;

use super::{
    COOKIES, Inner,
    command::CollectionId,
    connection::{Connection, run},
    date, deleted_before,
    error_class::{Failure, code, failure},
    error_text,
};
use tokio::time::timeout;

use crate::{
    deletions::Deletions,
    store::{LookupResult, StoreError},
};

/// Maximum age of the list of DSPs for a lookup.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// Maximum number of concurrent finds of a lookup. With more, threads of mongod only wait for each other.
const CONCURRENT_FINDS_MAX: usize = 32;

/// Timeout of a find in one DSP's database.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

impl Inner {
    pub(super) async fn find_user(
        &self,
        user_id: &str,
        deletions: &Deletions,
    ) -> Result<LookupResult, StoreError> {
        let connection = self.lookups().await?;
        let now = unix_micros();
        let mut dsps = self.list(connection, LIST_AGE_MAX).await?;
        let mut all = LookupResult::default();
        // A hanging command is in flight to this database, and a find would also hang.
        dsps.retain(|dsp_id| {
            let hanging = self.breakers.may_try(*dsp_id).err();
            if let Some(error) = &hanging {
                all.unavailable.push(*dsp_id);
                all.why.get_or_insert_with(|| error.to_string());
            }
            hanging.is_none()
        });
        let finds = dsps.into_iter().map(|dsp_id| {
            let database = self.database(connection, dsp_id);
            let deleted = deleted_before(deletions.deleted_until(user_id.as_bytes(), dsp_id));
            let expired = self.options.ttls.expired_before(dsp_id, now);
            let before = date(expired.max(deleted));
            let found = find(connection, database, user_id, before);
            async move { (dsp_id, found.await) }
        });
        let mut finds = stream::iter(finds).buffer_unordered(CONCURRENT_FINDS_MAX);
        while let Some((dsp_id, found)) = finds.next().await {
            match found {
                Ok(buyer_uid) => all.buyer_uids.extend(buyer_uid.map(|it| (dsp_id, it))),
                Err(why) => {
                    all.unavailable.push(dsp_id);
                    all.why.get_or_insert(why);
                }
            }
        }
        Ok(all)
    }

    /// Connections that are independent of writes.
    async fn lookups(&self) -> Result<&Connection, StoreError> {
        self.lookups
            .get_or_try_init(|| Connection::open(&self.options.uri))
            .await
    }

    /// The DSPs that have a database. Each of them is accepted.
    pub(super) async fn read_slots(&self) -> Result<Vec<u32>, StoreError> {
        let dsps = self.list(self.connection().await?, Duration::ZERO).await?;
        self.dsps.lock().slots.extend(&dsps);
        Ok(dsps.into_iter().collect())
    }

    /// The DSPs that have a database, from a list not older than `age_max`.
    pub(super) async fn list(
        &self,
        connection: &Connection,
        age_max: Duration,
    ) -> Result<BTreeSet<u32>, StoreError> {
        {
            let dsps = self.dsps.lock();
            if dsps.listed_at.is_some_and(|at| at.elapsed() <= age_max) {
                return Ok(dsps.listed.clone());
            }
        }
        let names = run(connection.client.list_database_names()).await?;
        let found = names.iter().filter_map(|name| self.dsp_of(name));
        let mut dsps = self.dsps.lock();
        dsps.listed = found.collect();
        let slots = dsps.slots.clone();
        dsps.listed.extend(slots);
        dsps.listed_at = Some(Instant::now());
        Ok(dsps.listed.clone())
    }

    /// The DSP of a database name, in canonical form: `7`, not `07`.
    fn dsp_of(&self, database: &str) -> Option<u32> {
        let number = database.strip_prefix(&self.options.prefix)?;
        let dsp_id = number.parse().ok()?;
        (ids::is_dsp_id(dsp_id) && number == u32::to_string(&dsp_id)).then_some(dsp_id)
    }

    /// The id of a DSP's collection, which writes must name, so that they cannot create a dropped collection without its options.
    /// `None` if the server cannot check it (before MongoDB 6.0).
    pub(super) async fn collection_id(
        &self,
        connection: &Connection,
        dsp_id: u32,
    ) -> Result<Option<CollectionId>, Failure> {
        if let Some(known) = self.dsps.lock().collections.get(&dsp_id) {
            return Ok(*known);
        }
        let database = self.database(connection, dsp_id);
        let found = run(async {
            let list = doc! { "listCollections": 1, "filter": { "name": COOKIES } };
            let listed = database.run_command(list).await?;
            let batch = listed
                .get_document("cursor")
                .and_then(|it| it.get_array("firstBatch"));
            let Some(found) = batch.ok().and_then(|it| it.first()?.as_document()) else {
                return Ok(None);
            };
            let uuid = found
                .get_document("info")
                .ok()
                .and_then(|info| info.get("uuid"));
            let find = doc! {
                "find": COOKIES,
                "filter": { "_id": "" },
                "singleBatch": true,
                "collectionUUID": uuid.cloned(),
            };
            match database.run_command(find).await {
                Err(error) if code(&error).is_none() => Err(error),
                Err(_) => Ok(Some(None)),
                Ok(_) => Ok(Some(uuid.and_then(bytes))),
            }
        });
        let Some(id) = found.await? else {
            self.dsps.lock().remove_slot(dsp_id);
            return Err(Failure::Dsp("the collection does not exist".to_owned()));
        };
        self.dsps.lock().collections.insert(dsp_id, id);
        Ok(id)
    }

    /// Whether a DSP's database has the collection of cookies. A foreign database may have the same name.
    pub(super) async fn has_cookies(&self, database: &Database) -> Result<bool, Failure> {
        let names = database.list_collection_names();
        let names = names.filter(doc! { "type": "collection", "name": COOKIES });
        Ok(!run(names).await?.is_empty())
    }
}

fn bytes(uuid: &Bson) -> Option<CollectionId> {
    match uuid {
        Bson::Binary(binary) => binary.bytes.as_slice().try_into().ok(),
        _ => None,
    }
}

/// The buyer uid of a user in one database, unless it has expired. Uses a raw command, which is cheaper than the driver's
/// cursor: a lookup sends hundreds of finds.
///
/// # Errors
/// A description for the operator.
async fn find(
    connection: &Connection,
    database: Database,
    user_id: &str,
    before: DateTime,
) -> Result<Option<String>, String> {
    // With `t` in the filter, mongod would compare the plans of two indexes each time.
    let command = rawdoc! {
        "find": COOKIES,
        "filter": { "_id": user_id },
        "limit": 1,
        "singleBatch": true,
    };
    let attempt = || {
        let find = database.run_raw_command(command.clone());
        match connection.client.selection_criteria() {
            Some(criteria) => find.selection_criteria(criteria.clone()).into_future(),
            None => find.into_future(),
        }
    };
    // Tries twice: a pooled connection may be to a server that has restarted.
    let reply = async {
        match attempt().await {
            Err(error) if matches!(failure(&error), Failure::Server(_)) => attempt().await,
            reply => reply,
        }
    };
    let reply = match timeout(LOOKUP_TIMEOUT, reply).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error)) => return Err(error_text::explain(&error)),
        Err(_) => return Err(format!("no response for {LOOKUP_TIMEOUT:?}")),
    };
    let found = reply.get_document("cursor");
    let found = found.and_then(|cursor| cursor.get_array("firstBatch"));
    let found = found.map_err(|error| format!("response without documents: {error}"))?;
    let cookie = found.first().and_then(Bson::as_document);
    // A document without a time is not a cookie.
    let alive = cookie.filter(|it| it.get_datetime("t").is_ok_and(|time| *time >= before));
    let buyer_uid = alive.and_then(|it| it.get_str("b").ok());
    Ok(buyer_uid.map(str::to_owned))
}
