//! Lookups of users, and pages of the cookies of one DSP: a page reads up to [`PAGE_COOKIES_MAX`] documents in the order
//! of `_id`.
//!
//! A lookup sends one find per DSP, for all of its users. A find that is not answered by the deadline continues in the background. While
//! it hangs, no further find is sent to its database: so a hanging database delays no lookup, and occupies few connections.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::IntoFuture,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use mongodb::{
    Database,
    bson::{Bson, Document, RawArrayBuf, doc, rawdoc},
};
use parking_lot::Mutex;
use proto::units::DspId;
use tokio::{
    task::AbortHandle,
    time::{Instant, timeout, timeout_at},
};

use super::{
    COOKIES, MongodbStore,
    connection::{Connection, primary, run},
    databases::DspDatabases,
    date, deleted_before,
    error_class::{Failure, failure},
    error_text, int, number, time,
};
use crate::{
    clock,
    deletions::Deletions,
    store::{
        Lookup, LookupQuery, LookupResult, PAGE_COOKIES_MAX, Page, PageQuery, StoreError,
        StoredMatch, UserMatches,
    },
    ttl::Ttls,
};

/// Age of the list of DSPs at which it is refreshed.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// Maximum number of concurrent finds of a lookup. With more, threads of mongod only wait for each other.
const CONCURRENT_FINDS_MAX: usize = 32;

/// Timeout of a find in one DSP's database.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);

/// Age of a find at which it counts as hanging if none was answered since it was sent, and number of late finds of a DSP at which all do.
const HANGS_AFTER: Duration = Duration::from_millis(100);
const LATE_FINDS_MAX: usize = 8;

/// Maximum time for a page on the server.
const PAGE_TIME_MAX: Duration = Duration::from_secs(2);

#[async_trait]
impl Lookup for MongodbStore {
    /// The server has its own cache.
    fn in_memory(&self, _: &str) -> Option<UserMatches> {
        None
    }

    async fn lookup(&self, query: LookupQuery) -> Result<LookupResult, StoreError> {
        let connection = self.lookups().await?;
        let mut dsps = self.recent_list(connection).await?;
        if let Some(named) = &query.dsps {
            dsps.retain(|dsp_id| named.binary_search(dsp_id).is_ok());
        }
        let user_ids: RawArrayBuf = query.user_ids.iter().map(|it| &**it).collect();
        let finds = dsps.into_iter().map(|dsp_id| {
            let found = self.find_by(query.deadline, connection, dsp_id, &user_ids);
            async move { (dsp_id, found.await) }
        });
        let mut finds = stream::iter(finds).buffer_unordered(CONCURRENT_FINDS_MAX);
        let mut result = LookupResult::default();
        let mut found = Vec::new();
        while let Some((dsp_id, documents)) = finds.next().await {
            match documents {
                Ok(documents) => found.push((dsp_id, documents)),
                Err(why) => {
                    result.unavailable.push(dsp_id);
                    result.why.get_or_insert(why);
                }
            }
        }
        found.sort_unstable_by_key(|(dsp_id, _)| *dsp_id);
        let mut by_user: HashMap<&str, Vec<StoredMatch<'_>>> = HashMap::new();
        for (dsp_id, reply) in &found {
            for document in documents(reply).into_iter().flatten() {
                let fields = document.as_document().and_then(|it| {
                    // A document without these fields is not a cookie.
                    let accepted = time(*it.get_datetime("t").ok()?)?;
                    Some((it.get_str("_id").ok()?, accepted, it.get_str("b").ok()?))
                });
                let Some((user_id, accepted, buyer_uid)) = fields else {
                    continue;
                };
                by_user.entry(user_id).or_default().push(StoredMatch {
                    dsp_id: *dsp_id,
                    accepted,
                    buyer_uid: buyer_uid.as_bytes(),
                });
            }
        }
        let of_user = |user_id: &str| by_user.get(user_id).into_iter().flatten().copied();
        let users = query.user_ids.iter();
        result.users = users.map(|it| Some(of_user(it).collect())).collect();
        Ok(result)
    }

    /// Without a query, a server counts from its metadata.
    async fn stored_cookies(&self) -> Result<BTreeMap<DspId, u64>, StoreError> {
        let connection = self.lookups().await?;
        let mut counts = BTreeMap::new();
        for dsp_id in self.recent_list(connection).await? {
            let command = doc! { "count": COOKIES };
            let database = self.database(connection, dsp_id);
            let counting = database.run_command(command);
            match run(counting.selection_criteria(primary())).await {
                Ok(reply) => {
                    let count = reply.get("n").and_then(number);
                    counts.insert(dsp_id, count.unwrap_or_default());
                }
                Err(_) => tracing::debug!(%dsp_id, "failed to count the stored cookies"),
            }
        }
        Ok(counts)
    }

    fn dsps(&self) -> BTreeSet<DspId> {
        self.dsps.lock().listed.clone()
    }

    fn ttls(&self) -> &Ttls {
        &self.options.ttls
    }

    fn resolution_micros(&self) -> u64 {
        1_000
    }

    async fn page(&self, query: &PageQuery, deletions: &Deletions) -> Result<Page, StoreError> {
        let dsp_id = query.dsp_id;
        let rows = i64::try_from(PAGE_COOKIES_MAX).unwrap_or(i64::MAX);
        // The consumer compares the times: the server would read an unlimited number of documents to find old ones.
        let command = doc! {
            "find": COOKIES,
            "filter": { "_id": { "$gt": &query.after_user } },
            "projection": { "_id": 1, "b": 1, "t": 1 },
            "sort": { "_id": 1 },
            "hint": { "_id": 1 },
            "limit": rows,
            "batchSize": rows,
            "singleBatch": true,
            "maxTimeMS": i64::try_from(PAGE_TIME_MAX.as_millis()).unwrap_or(i64::MAX),
        };
        let database = self.database(self.connection().await?, dsp_id);
        let command = database.run_command(command).selection_criteria(primary());
        let reply = run(command).await?;
        let found = documents(&reply).map_err(StoreError::Unavailable)?;
        let expired = self.options.ttls.expired_before(dsp_id, clock::now());
        let mut page = Page::default();
        for document in found.iter().filter_map(Bson::as_document) {
            let user_id = document.get_str("_id").unwrap_or_default();
            page.next = (found.len() == PAGE_COOKIES_MAX).then(|| user_id.to_owned());
            // A document without these fields is not a cookie.
            let (Ok(buyer_uid), Ok(accepted)) = (document.get_str("b"), document.get_datetime("t"))
            else {
                continue;
            };
            let deleted = deleted_before(deletions.deleted_until(user_id.as_bytes(), dsp_id));
            if *accepted >= date(expired.max(deleted)) && *accepted < date(query.before) {
                let accepted = time(*accepted).unwrap_or_default();
                page.cookies
                    .push((user_id.to_owned(), buyer_uid.to_owned(), accepted));
            }
        }
        Ok(page)
    }
}

impl MongodbStore {
    /// Connections that are independent of writes.
    async fn lookups(&self) -> Result<&Connection, StoreError> {
        // On the runtime of the store, which outlives those of lookup threads: the driver has tasks of its own.
        let open = || async {
            let uri = self.options.uri.clone();
            let opening = async move { Connection::open(&uri).await };
            let opened = self.tasks.spawn_on(opening, &self.runtime).await;
            opened.map_err(|error| StoreError::Unavailable(error.to_string()))?
        };
        self.lookups.get_or_try_init(open).await
    }

    /// The DSPs that have a database. If the list is old, it is refreshed in the background.
    async fn recent_list(&self, connection: &Connection) -> Result<BTreeSet<DspId>, StoreError> {
        let recent = self.dsps.lock().recent(LIST_AGE_MAX);
        let Some((dsps, is_refresh_due)) = recent else {
            return self.list(connection, LIST_AGE_MAX).await;
        };
        if is_refresh_due {
            let (client, prefix) = (connection.client.clone(), self.options.prefix.clone());
            let listing = DspDatabases::refresh(Arc::clone(&self.dsps), client, prefix);
            self.tasks.spawn(listing);
        }
        Ok(dsps)
    }

    /// Finds users in the database of a DSP.
    ///
    /// # Errors
    /// A description for the operator.
    async fn find_by(
        &self,
        deadline: Instant,
        connection: &Connection,
        dsp_id: DspId,
        user_ids: &RawArrayBuf,
    ) -> Result<Document, String> {
        // A hanging command is in flight to this database, and a find would also hang.
        let tried = self.breakers.may_try(dsp_id);
        tried.map_err(|error| error.to_string())?;
        let sent = Instant::now();
        let patience = deadline.saturating_duration_since(sent);
        if patience.is_zero() {
            return Err("no time left before the deadline".to_owned());
        }
        if self.late_finds.are_hanging(dsp_id, patience) {
            return Err("no response to earlier finds yet".to_owned());
        }
        let database = self.database(connection, dsp_id);
        let finding = find(connection.clone(), database, user_ids.clone());
        let late_finds = Arc::clone(&self.late_finds);
        let finding = async move {
            let found = finding.await;
            if found.is_ok() {
                late_finds.answered(dsp_id);
            }
            found
        };
        // On the runtime of the connections, which the lookup port does not share.
        let mut finding = self.tasks.spawn_on(finding, &self.runtime);
        // Also if the lookup is cancelled.
        let late = LateFind {
            finds: &self.late_finds,
            dsp_id,
            sent,
            find: finding.abort_handle(),
        };
        let found = timeout_at(deadline, &mut finding).await;
        drop(late);
        match found {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(format!("a find failed: {error}")),
            Err(_) => Err("no response by the deadline".to_owned()),
        }
    }
}

/// Finds that did not end before their lookup, by DSP.
#[derive(Debug, Default)]
pub(super) struct LateFinds(Mutex<BTreeMap<DspId, LateFindsOfDsp>>);

#[derive(Debug, Default)]
struct LateFindsOfDsp {
    late: Vec<(Instant, AbortHandle)>,
    /// When a find was answered last.
    answered: Option<Instant>,
}

impl LateFinds {
    /// Whether a find that can wait for `patience` is useless: an earlier one hangs, or many have already waited longer. So lookups with
    /// short deadlines do not stop those of others.
    fn are_hanging(&self, dsp_id: DspId, patience: Duration) -> bool {
        let mut all = self.0.lock();
        let Some(of_dsp) = all.get_mut(&dsp_id) else {
            return false;
        };
        of_dsp.late.retain(|(_, find)| !find.is_finished());
        let older_than = |age| {
            let late = of_dsp.late.iter().map(|(sent, _)| *sent);
            late.filter(move |sent| sent.elapsed() >= age)
        };
        older_than(HANGS_AFTER).any(|sent| Some(sent) > of_dsp.answered)
            || older_than(patience.min(HANGS_AFTER)).count() >= LATE_FINDS_MAX
    }

    /// Registers that the database answers.
    fn answered(&self, dsp_id: DspId) {
        // Only compared with late finds.
        if let Some(of_dsp) = self.0.lock().get_mut(&dsp_id) {
            of_dsp.answered = Some(Instant::now());
        }
    }
}

/// Adds a find to the late ones on drop, unless it has ended.
struct LateFind<'a> {
    finds: &'a LateFinds,
    dsp_id: DspId,
    sent: Instant,
    find: AbortHandle,
}

impl Drop for LateFind<'_> {
    fn drop(&mut self) {
        if !self.find.is_finished() {
            let mut all = self.finds.0.lock();
            let of_dsp = all.entry(self.dsp_id).or_default();
            of_dsp.late.push((self.sent, self.find.clone()));
        }
    }
}

/// Finds users in one database. Uses a raw command, which is cheaper than the driver's cursor: a lookup can send hundreds of finds.
///
/// # Errors
/// A description for the operator.
async fn find(
    connection: Connection,
    database: Database,
    user_ids: RawArrayBuf,
) -> Result<Document, String> {
    let count = int(user_ids.into_iter().count() as u64);
    // With `t` in the filter, mongod would compare the plans of two indexes each time.
    let command = rawdoc! {
        "find": COOKIES,
        "filter": { "_id": { "$in": user_ids } },
        "limit": count,
        "batchSize": count,
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
    match timeout(FIND_TIMEOUT, reply).await {
        Ok(Ok(reply)) => documents(&reply).map(drop).map(|()| reply),
        Ok(Err(error)) => Err(error_text::explain(&error)),
        Err(_) => Err(format!("no response for {FIND_TIMEOUT:?}")),
    }
}

/// The documents of a reply with a single batch.
///
/// # Errors
/// A description for the operator.
fn documents(reply: &Document) -> Result<&[Bson], String> {
    let cursor = reply.get_document("cursor");
    let found = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
    found
        .map(Vec::as_slice)
        .map_err(|error| format!("response without documents: {error}"))
}
