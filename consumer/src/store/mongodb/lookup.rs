//! Lookups of users, and pages of the cookies of one DSP: a page reads up to [`PAGE_COOKIES_MAX`] documents in the order
//! of `_id`.

use std::{future::IntoFuture, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use mongodb::{
    Database,
    bson::{Bson, DateTime, Document, doc, rawdoc},
};
use tokio::time::timeout;

use super::{
    COOKIES, MongodbStore,
    connection::{Connection, primary, run},
    date, deleted_before,
    error_class::{Failure, failure},
    error_text, time,
};
use crate::{
    clock,
    deletions::Deletions,
    store::{Lookup, LookupResult, PAGE_COOKIES_MAX, Page, PageQuery, StoreError},
};

/// Maximum age of the list of DSPs for a lookup.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// Maximum number of concurrent finds of a lookup. With more, threads of mongod only wait for each other.
const CONCURRENT_FINDS_MAX: usize = 32;

/// Timeout of a find in one DSP's database.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time for a page on the server.
const PAGE_TIME_MAX: Duration = Duration::from_secs(2);

#[async_trait]
impl Lookup for MongodbStore {
    async fn lookup(
        &self,
        user_id: &str,
        deletions: &Deletions,
    ) -> Result<LookupResult, StoreError> {
        let connection = self.lookups().await?;
        let now = clock::now();
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
        self.lookups
            .get_or_try_init(|| Connection::open(&self.options.uri))
            .await
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
    let cookie = documents(&reply)?.first().and_then(Bson::as_document);
    // A document without a time is not a cookie.
    let alive = cookie.filter(|it| it.get_datetime("t").is_ok_and(|time| *time >= before));
    let buyer_uid = alive.and_then(|it| it.get_str("b").ok());
    Ok(buyer_uid.map(str::to_owned))
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
