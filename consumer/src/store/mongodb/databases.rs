//! The databases of DSPs, and the own database, `cookiesync`, which has everything except cookies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::TryStreamExt;
use mongodb::{
    Client, Collection, Database,
    bson::{Bson, Document, doc},
    options::DatabaseOptions,
};
use parking_lot::Mutex;
use proto::units::DspId;

use super::{
    COOKIES, MongodbStore, collection,
    command::CollectionId,
    connection::{Connection, primary, run},
    error_class::{Failure, UNKNOWN_FIELD, code},
    first_batch,
};
use crate::store::StoreError;

/// The database name after its prefix.
const OWN_NAME: &str = "cookiesync";
/// The DSPs that have a database.
#[derive(Debug, Default)]
pub(super) struct DspDatabases {
    /// DSPs that had a database at startup, or for which this process created one.
    pub(super) slots: BTreeSet<DspId>,
    /// The collections to which this process writes; `None` if the server cannot check their ids.
    collections: BTreeMap<DspId, Option<CollectionId>>,
    /// DSPs that had a database when databases were last listed.
    pub(super) listed: BTreeSet<DspId>,
    listed_at: Option<Instant>,
}

impl DspDatabases {
    /// Records that this DSP has a database.
    pub(super) fn add_slot(&mut self, dsp_id: DspId) {
        self.slots.insert(dsp_id);
        self.listed.insert(dsp_id);
    }

    /// The DSPs that had a database when databases were last listed, and whether to list them again: once per `age_max`. `None` if they
    /// were never listed.
    pub(super) fn recent(&mut self, age_max: Duration) -> Option<(BTreeSet<DspId>, bool)> {
        let listed_at = self.listed_at.as_mut()?;
        let is_refresh_due = listed_at.elapsed() > age_max;
        if is_refresh_due {
            *listed_at = Instant::now();
        }
        Some((self.listed.clone(), is_refresh_due))
    }

    /// Lists the databases.
    pub(super) async fn refresh(
        databases: Arc<Mutex<Self>>,
        client: Client,
        prefix: String,
    ) -> Result<BTreeSet<DspId>, StoreError> {
        let names = run(client.list_database_names()).await?;
        let found = names.iter().filter_map(|name| dsp_of(name, &prefix));
        let mut dsps = databases.lock();
        dsps.listed = found.collect();
        let slots = dsps.slots.clone();
        dsps.listed.extend(slots);
        dsps.listed_at = Some(Instant::now());
        Ok(dsps.listed.clone())
    }

    /// Records that the collection of this DSP was dropped. The next retry creates it.
    pub(super) fn remove_slot(&mut self, dsp_id: DspId) {
        self.slots.remove(&dsp_id);
        self.listed.remove(&dsp_id);
        self.collections.remove(&dsp_id);
    }
}

/// The DSP of a database name, in canonical form: `7`, not `07`.
fn dsp_of(database: &str, prefix: &str) -> Option<DspId> {
    let number = database.strip_prefix(prefix)?;
    let dsp_id: DspId = number.parse().ok()?;
    (dsp_id.is_valid() && number == dsp_id.to_string()).then_some(dsp_id)
}

impl MongodbStore {
    /// The database of a DSP.
    pub(super) fn database(&self, connection: &Connection, dsp_id: DspId) -> Database {
        let name = format!("{}{dsp_id}", self.options.prefix);
        connection.client.database(&name)
    }

    /// The DSPs that have a database. Each of them is accepted.
    pub(super) async fn read_slots(&self) -> Result<Vec<DspId>, StoreError> {
        let dsps = self.list(self.connection().await?, Duration::ZERO).await?;
        self.dsps.lock().slots.extend(&dsps);
        Ok(dsps.into_iter().collect())
    }

    /// The DSPs that have a database, from a list not older than `age_max`.
    pub(super) async fn list(
        &self,
        connection: &Connection,
        age_max: Duration,
    ) -> Result<BTreeSet<DspId>, StoreError> {
        {
            let dsps = self.dsps.lock();
            if dsps.listed_at.is_some_and(|at| at.elapsed() <= age_max) {
                return Ok(dsps.listed.clone());
            }
        }
        let (client, prefix) = (connection.client.clone(), self.options.prefix.clone());
        DspDatabases::refresh(Arc::clone(&self.dsps), client, prefix).await
    }

    /// Whether a DSP's database has the collection of cookies. A foreign database may have the same name.
    pub(super) async fn has_cookies(&self, database: &Database) -> Result<bool, Failure> {
        let names = database.list_collection_names();
        let names = names.filter(doc! { "type": "collection", "name": COOKIES });
        Ok(!run(names).await?.is_empty())
    }

    /// Creates the collection of a DSP, and so its database.
    pub(super) async fn create_slot(
        &self,
        connection: &Connection,
        dsp_id: DspId,
    ) -> Result<(), Failure> {
        let database = self.database(connection, dsp_id);
        if !self.has_cookies(&database).await? {
            run(collection::create(&database)).await?;
        }
        self.dsps.lock().add_slot(dsp_id);
        Ok(())
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

    /// Replaces or inserts a document of a collection in the own database.
    pub(super) async fn put_own(
        &self,
        collection: &str,
        id: &str,
        document: Document,
    ) -> Result<(), StoreError> {
        let collection = self.own_collection(collection).await?;
        let put = collection.replace_one(doc! { "_id": id }, document);
        run(put.upsert(true)).await?;
        Ok(())
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
        let name = format!("{}{OWN_NAME}", self.options.prefix);
        // Regardless of the URI: the lag of a secondary must not look like a loss.
        let options = DatabaseOptions::builder().selection_criteria(primary());
        let client = &connection.client;
        client.database_with_options(&name, options.build())
    }
}

/// The namespace of the cookies in a DSP's database.
pub(super) fn namespace(database: &Database) -> String {
    format!("{}.{COOKIES}", database.name())
}

/// The id of a DSP's collection, which writes must name, so that they cannot create a dropped collection without its options.
/// `None` if the server cannot check it (before MongoDB 6.0).
pub(super) async fn collection_id(
    dsps: &Mutex<DspDatabases>,
    database: &Database,
    dsp_id: DspId,
) -> Result<Option<CollectionId>, Failure> {
    if let Some(known) = dsps.lock().collections.get(&dsp_id) {
        return Ok(*known);
    }
    let found = run(async {
        let list = doc! { "listCollections": 1, "filter": { "name": COOKIES } };
        let listed = database.run_command(list).await?;
        let Some(found) = first_batch(&listed).next() else {
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
            Err(error) if code(&error) == Some(UNKNOWN_FIELD) => Ok(Some(None)),
            Err(error) => Err(error),
            Ok(_) => Ok(Some(uuid.and_then(bytes))),
        }
    });
    let Some(id) = found.await? else {
        dsps.lock().remove_slot(dsp_id);
        return Err(Failure::Dsp("the collection does not exist".to_owned()));
    };
    dsps.lock().collections.insert(dsp_id, id);
    Ok(id)
}

fn bytes(uuid: &Bson) -> Option<CollectionId> {
    match uuid {
        Bson::Binary(binary) => binary.bytes.as_slice().try_into().ok(),
        _ => None,
    }
}
