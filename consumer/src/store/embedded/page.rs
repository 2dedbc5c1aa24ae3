//! Pages of the cookies of one DSP. To read a page, the store scans a range of the cookies of all DSPs, in the order of
//! user ids.

use std::{
    ops::Bound,
    time::{Duration, Instant},
};

use super::{
    Inner, Page, PageQuery,
    records::{CookieKey, stored_cookie},
};
use crate::{deletions::Deletions, store::PAGE_COOKIES_MAX};

/// Maximum number of keys read for a page; the remaining keys of the last user are also read.
const KEYS_MAX: usize = 20_000;

/// Maximum time for a page, checked after every [`KEYS_PER_CHECK`] keys.
const TIME_MAX: Duration = Duration::from_millis(50);
const KEYS_PER_CHECK: usize = 256;

impl Inner {
    pub(super) fn page(&self, query: &PageQuery, deletions: &Deletions) -> fjall::Result<Page> {
        let began = Instant::now();
        let expired = self.ttls.expired_before(query.dsp_id, (self.tuning.now)());
        let after = CookieKey::of(query.after_user.as_bytes(), query.dsp_id);
        let after = (Bound::Excluded(after.as_slice()), Bound::Unbounded);
        let mut page = Page::default();
        let (mut user, mut is_late) = (Vec::new(), false);
        for (keys, pair) in self.cookies.range::<&[u8], _>(after).enumerate() {
            let (key, value) = pair.into_inner()?;
            let Some(cookie) = stored_cookie(&key, &value) else {
                continue;
            };
            is_late |= keys % KEYS_PER_CHECK == 0 && began.elapsed() > TIME_MAX;
            let is_full = is_late || keys >= KEYS_MAX || page.cookies.len() == PAGE_COOKIES_MAX;
            // All cookies of the previous user are read.
            if cookie.user_id != user {
                if is_full && !user.is_empty() {
                    page.next = Some(String::from_utf8_lossy(&user).into_owned());
                    return Ok(page);
                }
                user = cookie.user_id.to_vec();
            }
            let accepted = cookie.accepted;
            if cookie.dsp_id == query.dsp_id
                && (expired..query.before).contains(&accepted)
                && accepted > deletions.deleted_until(cookie.user_id, cookie.dsp_id)
            {
                let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                page.cookies
                    .push((text(cookie.user_id), text(cookie.buyer_uid), accepted));
            }
        }
        Ok(page)
    }
}
