//! Pages for other nodes: a page scans a range of cookies or deletions in the order of their keys.

use std::ops::Bound;

use async_trait::async_trait;
use fjall::{Keyspace, PersistMode, UserKey, UserValue};
use proto::{
    limits::USER_ID_BYTES_MAX,
    wire::{CookieRef, Record},
};

use super::{
    EmbeddedStore, Inner,
    records::{COPY_KEY, CookieKey, DELETION_PREFIX, decode_deletion, dsp_of, stored_cookie},
};
use crate::{
    batch::BatchCookie,
    copy::protocol::{CopyPage, PAGE_RECORDS_MAX, encode, parse_position, position},
    deletions::Deletions,
    store::{Copies, StoreError},
};

/// The prefix of positions.
const ORDER: &str = "user";

#[async_trait]
impl Copies for EmbeddedStore {
    fn order(&self) -> &'static str {
        ORDER
    }

    async fn cookies_after(
        &self,
        position: &str,
        deletions: &Deletions,
    ) -> Result<CopyPage, StoreError> {
        let (position, deletions) = (position.to_owned(), deletions.clone());
        let scan = move |inner: &Inner| scan(&inner.cookies, b"", &position);
        let scanned = self.run_with_lowest_priority(scan).await?;
        // With the usual priority, because lookups wait for its locks.
        self.run(move |inner| Ok(inner.copied_page(scanned, &deletions)))
            .await
    }

    async fn deletions_after(&self, position: &str) -> Result<CopyPage, StoreError> {
        let position = position.to_owned();
        self.run_with_lowest_priority(move |inner| inner.deletions_after(&position))
            .await
    }

    async fn approximate_cookies(&self) -> Result<u64, StoreError> {
        self.run(|inner| Ok(inner.cookies.approximate_len() as u64))
            .await
    }

    async fn copy_state(&self) -> Result<Option<String>, StoreError> {
        self.run(|inner| {
            let state = inner.meta.get(COPY_KEY)?;
            Ok(state.map(|state| String::from_utf8_lossy(&state).into_owned()))
        })
        .await
    }

    async fn put_copy_state(&self, state: &str) -> Result<(), StoreError> {
        let state = state.to_owned();
        self.run(move |inner| {
            inner.meta.insert(COPY_KEY, state)?;
            inner.database.persist(PersistMode::SyncData)
        })
        .await
    }
}

impl Inner {
    /// A page of those of the scanned cookies that exist.
    fn copied_page(&self, (pairs, next): Scanned, deletions: &Deletions) -> CopyPage {
        let now = (self.tuning.now)();
        let is_live = |it: &BatchCookie<'_>| {
            it.accepted >= self.ttls.expired_before(it.dsp_id, now)
                && it.accepted > deletions.deleted_until(it.user_id, it.dsp_id)
        };
        let cookies = pairs.iter().filter_map(|(key, value)| {
            let cookie = stored_cookie(key, value).filter(is_live)?;
            let record = Record::Set(CookieRef {
                user_id: str::from_utf8(cookie.user_id).ok()?,
                dsp_id: cookie.dsp_id,
                buyer_uid: str::from_utf8(cookie.buyer_uid).ok()?,
                age_micros: 0,
            });
            Some((record, cookie.accepted))
        });
        let cookies: Vec<_> = cookies.collect();
        let chunks = encode(cookies.iter().copied());
        CopyPage { chunks, next }
    }

    fn deletions_after(&self, after: &str) -> fjall::Result<CopyPage> {
        let (pairs, next) = scan(&self.meta, DELETION_PREFIX, after)?;
        let stored = pairs
            .iter()
            .filter_map(|(key, value)| decode_deletion(key, value).map(|it| it.deletion));
        let stored: Vec<_> = stored.collect();
        let chunks = encode(
            stored
                .iter()
                .filter_map(|it| Some((it.record()?, it.until))),
        );
        Ok(CopyPage { chunks, next })
    }
}

/// A key and its value.
type Pair = (UserKey, UserValue);

/// Pairs, and the position after them, unless they are the last ones.
type Scanned = (Vec<Pair>, Option<String>);

/// The next pairs with a prefix.
fn scan(keyspace: &Keyspace, prefix: &[u8], after: &str) -> fjall::Result<Scanned> {
    let (user_id, dsp_id) = parse_position(ORDER, after);
    let user_id = user_id.as_bytes();
    let user_id = user_id.get(..USER_ID_BYTES_MAX).unwrap_or(user_id);
    let first = [prefix, CookieKey::of(user_id, dsp_id).as_slice()].concat();
    let mut pairs: Vec<Pair> = Vec::new();
    for pair in keyspace.range::<Vec<u8>, _>((Bound::Excluded(first), Bound::Unbounded)) {
        let (key, value) = pair.into_inner()?;
        if !key.starts_with(prefix) {
            break;
        }
        if let Some((last, _)) = pairs.last()
            && pairs.len() == PAGE_RECORDS_MAX
        {
            let user_id = last[prefix.len()..].split(|byte| *byte == 0).next();
            let user_id = String::from_utf8_lossy(user_id.unwrap_or_default());
            let next = position(ORDER, &user_id, dsp_of(last).unwrap_or_default());
            return Ok((pairs, Some(next)));
        }
        pairs.push((key, value));
    }
    Ok((pairs, None))
}
