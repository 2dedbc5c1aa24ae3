//! Pages of the cookies of one DSP. A page scans a range of all cookies, in the order of users.

use std::{
    ops::Bound,
    time::{Duration, Instant},
};

use super::{
    Inner, Page, PageQuery,
    records::{CookieKey, stored_cookie},
};
use crate::{cookie_pages::ROWS_MAX, deletions::Deletions};

/// Maximum number of keys that are read for a page, unless they are all of one user.
const KEYS_MAX: usize = 20_000;

/// Maximum time for a page, checked after every [`KEYS_PER_CHECK`] keys.
const TIME_MAX: Duration = Duration::from_millis(50);
const KEYS_PER_CHECK: usize = 256;

impl Inner {
    pub(super) fn page(&self, query: &PageQuery, deletions: &Deletions) -> fjall::Result<Page> {
        let began = Instant::now();
        let expired = self
            .ttls
            .expired_before(query.dsp_id, (self.tuning.now_unix_micros)());
        let after = CookieKey::of(query.after_user.as_bytes(), query.dsp_id);
        let after = (Bound::Excluded(after.as_slice()), Bound::Unbounded);
        let mut page = Page::default();
        for (keys, pair) in self.cookies.range::<&[u8], _>(after).enumerate() {
            let is_late = || keys % KEYS_PER_CHECK == 0 && began.elapsed() > TIME_MAX;
            let is_full = keys >= KEYS_MAX || page.cookies.len() == ROWS_MAX || is_late();
            if is_full && page.next.is_some() {
                return Ok(page);
            }
            let (key, value) = pair.into_inner()?;
            let Some(cookie) = stored_cookie(&key, &value) else {
                continue;
            };
            // Otherwise the user may have a later cookie of the DSP.
            if cookie.dsp_id >= query.dsp_id {
                page.next = Some(String::from_utf8_lossy(cookie.user_id).into_owned());
            }
            let accepted = cookie.accepted_unix_micros;
            if cookie.dsp_id == query.dsp_id
                && (expired..query.before).contains(&accepted)
                && accepted > deletions.deleted_until(cookie.user_id, cookie.dsp_id)
            {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                page.cookies
                    .push((text(cookie.user_id), text(cookie.buyer_uid), accepted));
            }
        }
        page.next = None;
        Ok(page)
    }
}
