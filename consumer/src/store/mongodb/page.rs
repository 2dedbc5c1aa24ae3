//! Pages of the cookies of one DSP: a page reads up to [`ROWS_MAX`] documents in the order of `_id`.

use std::time::Duration;

use mongodb::bson::{Bson, doc};
use runtime::unix_micros;

use super::{
    COOKIES, Inner,
    connection::{primary, run},
    date, deleted_before,
};
use crate::{
    cookie_pages::ROWS_MAX,
    deletions::Deletions,
    store::{Page, PageQuery, StoreError},
};

/// Maximum time for a page on the server.
const TIME_MAX: Duration = Duration::from_secs(2);

impl Inner {
    pub(super) async fn read_page(
        &self,
        query: &PageQuery,
        deletions: &Deletions,
    ) -> Result<Page, StoreError> {
        let dsp_id = query.dsp_id;
        let rows = i64::try_from(ROWS_MAX).unwrap_or(i64::MAX);
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
            "maxTimeMS": i64::try_from(TIME_MAX.as_millis()).unwrap_or(i64::MAX),
        };
        let database = self.database(self.connection().await?, dsp_id);
        let command = database.run_command(command).selection_criteria(primary());
        let reply = run(command).await?;
        let found = reply
            .get_document("cursor")
            .and_then(|it| it.get_array("firstBatch"));
        let missing = |_| StoreError::Unavailable("response without documents".to_owned());
        let found = found.map_err(missing)?;
        let expired = self.options.ttls.expired_before(dsp_id, unix_micros());
        let mut page = Page::default();
        for document in found.iter().filter_map(Bson::as_document) {
            let user_id = document.get_str("_id").unwrap_or_default();
            page.next = (found.len() == ROWS_MAX).then(|| user_id.to_owned());
            // A document without these fields is not a cookie.
            let (Ok(buyer_uid), Ok(accepted)) = (document.get_str("b"), document.get_datetime("t"))
            else {
                continue;
            };
            let deleted = deleted_before(deletions.deleted_until(user_id.as_bytes(), dsp_id));
            if *accepted >= date(expired.max(deleted)) && *accepted < date(query.before) {
                let millis = u64::try_from(accepted.timestamp_millis()).unwrap_or_default();
                page.cookies
                    .push((user_id.to_owned(), buyer_uid.to_owned(), millis * 1000));
            }
        }
        Ok(page)
    }
}
