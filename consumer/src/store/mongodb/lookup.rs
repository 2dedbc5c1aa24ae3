//! Reading: the buyer uids of a user, and which DSPs have a database.

use std::{
    collections::BTreeSet,
    future::IntoFuture,
    time::{Duration, Instant},
};

use cookiesync::process::unix_micros;
use futures_util::future::try_join_all;
use mongodb::{
    Database,
    bson::{RawDocumentBuf, doc},
};

use super::{
    MongodbStore,
    connection::{Connection, in_time},
    date,
};
use crate::store::{BuyerUids, StoreError};

/// How long the list of DSPs is believed when it is only for a lookup.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

impl MongodbStore {
    pub(super) async fn find_user(&self, user_id: &str) -> Result<BuyerUids, StoreError> {
        let connection = self.connection().await?;
        let (now, layout) = (unix_micros(), self.options.layout);
        let name = layout.collection(layout.part(user_id.as_bytes()));
        let dsps = self.list(connection, LIST_AGE_MAX).await?;
        let finds = dsps.into_iter().map(|dsp_id| {
            let database = self.database(connection, dsp_id);
            let collection = database.collection::<RawDocumentBuf>(&name);
            let before = date(self.options.ttls.expired_before(dsp_id, now));
            async move {
                let alive = doc! { "_id": user_id, "t": { "$gte": before } };
                let found = in_time(collection.find_one(alive).into_future()).await?;
                let buyer_uid =
                    found.and_then(|document| Some(document.get_str("b").ok()?.to_owned()));
                Ok::<_, StoreError>(buyer_uid.map(|buyer_uid| (dsp_id, buyer_uid)))
            }
        });
        Ok(try_join_all(finds).await?.into_iter().flatten().collect())
    }

    /// The DSPs that have a database, from a list that is at most so old.
    pub(super) async fn list(
        &self,
        connection: &Connection,
        age_max: Duration,
    ) -> Result<BTreeSet<u32>, StoreError> {
        {
            let dsps = self.dsps();
            if dsps.listed_at.is_some_and(|at| at.elapsed() <= age_max) {
                return Ok(dsps.listed.clone());
            }
        }
        let names = in_time(connection.client.list_database_names().into_future()).await?;
        let found = names.iter().filter_map(|name| self.dsp_of(name));
        let mut dsps = self.dsps();
        dsps.listed = found.collect();
        let prepared: Vec<u32> = dsps.prepared.iter().map(|(dsp_id, _)| *dsp_id).collect();
        dsps.listed.extend(prepared);
        dsps.listed_at = Some(Instant::now());
        Ok(dsps.listed.clone())
    }

    /// The DSP whose database has this name, in the form that we write ourselves: `7`, not `07`.
    fn dsp_of(&self, database: &str) -> Option<u32> {
        let number = database.strip_prefix(&self.options.prefix)?;
        let dsp_id = number.parse().ok()?;
        (dsp_id > 0 && number == u32::to_string(&dsp_id)).then_some(dsp_id)
    }

    /// Our collections in a DSP's database; none in one that only has such a name.
    pub(super) async fn collections(&self, database: &Database) -> Result<Vec<String>, StoreError> {
        let names = database.list_collection_names();
        let names = names.filter(doc! { "type": "collection" });
        let mut names = in_time(names.into_future()).await?;
        names.retain(|name| self.options.layout.is_ours(name));
        names.sort_unstable();
        Ok(names)
    }
}
