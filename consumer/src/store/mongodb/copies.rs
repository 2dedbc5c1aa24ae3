//! Pages for other nodes: the cookies of one DSP after the other, in the order of `_id`. The progress of filling this store is
//! in the database `cookiesync`, collection `copies`, `{_id: <consumer>, state: <JSON>}`.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use mongodb::{
    bson::{RawDocumentBuf, doc},
    options::Hint,
};
use proto::{
    units::DspId,
    wire::{CookieRef, Record},
};

use super::{
    COOKIES, MongodbStore,
    connection::{primary, run},
    cookies::deletions,
    deleted_before, time,
};
use crate::{
    clock,
    copy::protocol::{CopyPage, PAGE_RECORDS_MAX, encode, parse_position, position},
    deletions::{Deletion, Deletions},
    store::{Copies, StoreError},
};

/// The prefix of positions.
const ORDER: &str = "dsp";

const COLLECTION: &str = "copies";

/// Maximum age of the list of DSPs.
const LIST_AGE_MAX: Duration = Duration::from_secs(30);

/// Maximum time of a page on the server.
const TIME_MAX: Duration = Duration::from_secs(5);

#[async_trait]
impl Copies for MongodbStore {
    fn order(&self) -> &'static str {
        ORDER
    }

    async fn cookies_after(
        &self,
        after: &str,
        deletions: &Deletions,
    ) -> Result<CopyPage, StoreError> {
        let connection = self.connection().await?;
        let dsps = self.list(connection, LIST_AGE_MAX).await?;
        let (user_id, dsp_id) = parse_position(ORDER, after);
        let Some(current) = dsps.range(dsp_id..).next().copied() else {
            return Ok(CopyPage::default());
        };
        let user_id = if current == dsp_id { user_id } else { "" };
        self.breakers.may_try(current)?;
        let collection = self.database(connection, current).collection(COOKIES);
        let found = collection
            .find(doc! { "_id": { "$gt": user_id } })
            .sort(doc! { "_id": 1 })
            .hint(Hint::Keys(doc! { "_id": 1 }))
            .limit(i64::try_from(PAGE_RECORDS_MAX).unwrap_or(i64::MAX))
            .batch_size(u32::try_from(PAGE_RECORDS_MAX).unwrap_or(u32::MAX))
            .max_time(TIME_MAX)
            .selection_criteria(primary());
        let found = run(async { found.await?.try_collect().await });
        let found: Vec<RawDocumentBuf> = found.await?;
        let expired = self.options.ttls.expired_before(current, clock::now());
        let cookies = found.iter().filter_map(|document| {
            let (user_id, accepted) = (document.get_str("_id").ok()?, document.get_datetime("t"));
            let accepted = time(accepted.ok()?)?;
            let deleted = deleted_before(deletions.deleted_until(user_id.as_bytes(), current));
            let record = Record::Set(CookieRef {
                user_id,
                dsp_id: current,
                buyer_uid: document.get_str("b").ok()?,
                age_micros: 0,
            });
            (accepted >= expired.max(deleted)).then_some((record, accepted))
        });
        let cookies: Vec<_> = cookies.collect();
        let last = found.last().filter(|_| found.len() == PAGE_RECORDS_MAX);
        let next = match last.and_then(|last| last.get_str("_id").ok()) {
            Some(user_id) => Some(position(ORDER, user_id, current)),
            None => {
                let next = dsps.range(DspId(current.0.saturating_add(1))..).next();
                let next = next.filter(|next| **next != current);
                next.map(|next| position(ORDER, "", *next))
            }
        };
        let chunks = encode(cookies.iter().copied());
        Ok(CopyPage { chunks, next })
    }

    async fn deletions_after(&self, after: &str) -> Result<CopyPage, StoreError> {
        let (user_id, dsp_id) = parse_position(ORDER, after);
        let after = doc! { "u": user_id, "d": i64::from(dsp_id.0) };
        let collection = self.own_collection(deletions::COLLECTION).await?;
        // The start is the id of the floor.
        let found = collection
            .find(doc! { "_id": { "$gt": after } })
            .sort(doc! { "_id": 1 })
            .limit(i64::try_from(PAGE_RECORDS_MAX).unwrap_or(i64::MAX));
        let found: Vec<_> = run(async { found.await?.try_collect().await }).await?;
        let stored = found.iter().filter_map(deletions::decode);
        let stored: Vec<Deletion> = stored.map(|it| it.deletion).collect();
        let last = stored.last().filter(|_| found.len() == PAGE_RECORDS_MAX);
        let next = last.map(|last| {
            let (user_id, dsp_id) = last.ids();
            position(ORDER, &String::from_utf8_lossy(user_id), dsp_id)
        });
        let chunks = encode(
            stored
                .iter()
                .filter_map(|it| Some((it.record()?, it.until))),
        );
        Ok(CopyPage { chunks, next })
    }

    async fn approximate_cookies(&self) -> Result<u64, StoreError> {
        let connection = self.connection().await?;
        let mut cookies = 0;
        for dsp_id in self.list(connection, LIST_AGE_MAX).await? {
            let database = self.database(connection, dsp_id);
            let collection = database.collection::<RawDocumentBuf>(COOKIES);
            cookies += run(collection.estimated_document_count()).await?;
        }
        Ok(cookies)
    }

    async fn copy_state(&self) -> Result<Option<String>, StoreError> {
        let own = doc! { "_id": &self.options.name };
        let found = self.find_own(COLLECTION, own).await?;
        let state = found.first().and_then(|it| it.get_str("state").ok());
        Ok(state.map(str::to_owned))
    }

    async fn put_copy_state(&self, state: &str) -> Result<(), StoreError> {
        let (name, connection) = (&self.options.name, self.connection().await?);
        self.put_own(COLLECTION, name, doc! { "_id": name, "state": state })
            .await?;
        self.journal(connection).await
    }
}
