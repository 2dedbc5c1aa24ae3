//! Reading: the buyer uids of a user, and which DSPs have a database.

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
    connection::{Connection, answered, in_time},
    date, error_text,
    retry_policy::{Failure, failure},
};
use tokio::time::timeout;

use crate::store::{LookupResult, StoreError};

/// How long the list of DSPs is believed when it is only for a lookup.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// DSPs that one lookup asks at the same time: more only make mongod's threads wait for each other.
const CONCURRENT_FINDS_MAX: usize = 32;

/// How long one DSP's database is waited for.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

impl Inner {
    pub(super) async fn find_user(&self, user_id: &str) -> Result<LookupResult, StoreError> {
        let connection = self.lookups().await?;
        let now = unix_micros();
        let mut dsps = self.list(connection, LIST_AGE_MAX).await?;
        let mut all = LookupResult::default();
        // One command is in flight there already, and each lookup would wait as long as it.
        dsps.retain(|dsp_id| {
            let hangs = !self.breakers.may_try(*dsp_id);
            if hangs {
                all.unavailable.push(*dsp_id);
                let why = || "no answer yet to what was sent before".to_owned();
                all.why.get_or_insert_with(why);
            }
            !hangs
        });
        let finds = dsps.into_iter().map(|dsp_id| {
            let database = self.database(connection, dsp_id);
            let before = date(self.options.ttls.expired_before(dsp_id, now));
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

    /// Connections that no write waits for, nor they for one.
    async fn lookups(&self) -> Result<&Connection, StoreError> {
        self.lookups
            .get_or_try_init(|| in_time(Connection::new(&self.options.uri)))
            .await
    }

    /// The DSPs that have a database, each of which has a slot.
    pub(super) async fn read_slots(&self) -> Result<Vec<u32>, StoreError> {
        let dsps = self.list(self.connection().await?, Duration::ZERO).await?;
        self.dsps().slots.extend(&dsps);
        Ok(dsps.into_iter().collect())
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
        let slots = dsps.slots.clone();
        dsps.listed.extend(slots);
        dsps.listed_at = Some(Instant::now());
        Ok(dsps.listed.clone())
    }

    /// The DSP whose database has this name, in the form that we write ourselves: `7`, not `07`.
    fn dsp_of(&self, database: &str) -> Option<u32> {
        let number = database.strip_prefix(&self.options.prefix)?;
        let dsp_id = number.parse().ok()?;
        (ids::is_dsp_id(dsp_id) && number == u32::to_string(&dsp_id)).then_some(dsp_id)
    }

    /// Whether a DSP's database has our collection; one that only has such a name has not.
    pub(super) async fn has_cookies(&self, database: &Database) -> Result<bool, Failure> {
        let names = database.list_collection_names();
        let names = names.filter(doc! { "type": "collection", "name": COOKIES });
        let names = answered(names.into_future()).await?;
        let names = names.map_err(|error| failure(&error))?;
        Ok(!names.is_empty())
    }
}

/// The buyer uid of a user in one database, unless it has expired. By a bare command, which takes less of both processes than
/// the driver's cursor: a lookup makes hundreds of them.
///
/// # Errors
/// With the reason, for people.
async fn find(
    connection: &Connection,
    database: Database,
    user_id: &str,
    before: DateTime,
) -> Result<Option<String>, String> {
    // With `t` in the question, mongod would weigh two indexes against each other each time.
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
    // A connection that was kept may lead to a server that has been started anew since.
    let answer = async {
        match attempt().await {
            Err(error) if matches!(failure(&error), Failure::Server(_)) => attempt().await,
            answer => answer,
        }
    };
    let answer = match timeout(LOOKUP_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error_text::explain(&error)),
        Err(_) => return Err(format!("no answer for {LOOKUP_TIMEOUT:?}")),
    };
    let found = answer.get_document("cursor");
    let found = found.and_then(|cursor| cursor.get_array("firstBatch"));
    let found = found.map_err(|error| format!("an answer without documents: {error}"))?;
    let cookie = found.first().and_then(Bson::as_document);
    // What has no time is none of ours.
    let alive = cookie.filter(|it| it.get_datetime("t").is_ok_and(|time| *time >= before));
    let buyer_uid = alive.and_then(|it| it.get_str("b").ok());
    Ok(buyer_uid.map(str::to_owned))
}
