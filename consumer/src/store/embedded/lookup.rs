//! Lookups of users, first in the cache, and pages of the cookies of one DSP.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use proto::units::{DspId, UnixMicros};
use tokio::time::{Instant, timeout_at};

use super::{EmbeddedStore, Inner};
use crate::{
    deletions::Deletions,
    store::{
        Lookup, LookupQuery, LookupResult, MATCH_BYTES_MAX, Page, PageQuery, StoreError,
        UserMatches,
    },
    ttl::Ttls,
};

#[async_trait]
impl Lookup for EmbeddedStore {
    fn in_memory(&self, user_id: &str) -> Option<UserMatches> {
        self.inner.users.get(user_id.as_bytes())
    }

    async fn lookup(&self, query: LookupQuery) -> Result<LookupResult, StoreError> {
        let users = Arc::new(Mutex::new(vec![None; query.user_ids.len()]));
        let (found, deadline) = (Arc::clone(&users), query.deadline);
        let bytes_max = query.dsps.as_ref().map(|it| it.len() * MATCH_BYTES_MAX);
        let reading = self.run(move |inner| {
            for (at, user_id) in query.user_ids.iter().enumerate() {
                if Instant::now() >= query.deadline {
                    break;
                }
                let mut matches = inner.matches(user_id.as_bytes())?;
                if let Some(dsps) = &query.dsps
                    && bytes_max < Some(matches.bytes())
                {
                    matches = matches
                        .iter()
                        .filter(|it| dsps.binary_search(&it.dsp_id).is_ok())
                        .collect();
                }
                if let Some(place) = found.lock().get_mut(at) {
                    *place = Some(matches);
                }
            }
            Ok(())
        });
        // After the deadline, the thread ends with the current user.
        timeout_at(deadline, reading).await.unwrap_or(Ok(()))?;
        let users = std::mem::take(&mut *users.lock());
        Ok(LookupResult {
            users,
            ..LookupResult::default()
        })
    }

    async fn stored_cookies(&self) -> Result<BTreeMap<DspId, u64>, StoreError> {
        self.run_with_lowest_priority(Inner::estimate_by_dsp).await
    }

    fn dsps(&self) -> BTreeSet<DspId> {
        self.inner.slots.lock().clone()
    }

    fn ttls(&self) -> &Ttls {
        &self.inner.ttls
    }

    fn now(&self) -> UnixMicros {
        (self.inner.tuning.now)()
    }

    async fn page(&self, query: &PageQuery, deletions: &Deletions) -> Result<Page, StoreError> {
        let (query, deletions) = (query.clone(), deletions.clone());
        self.run(move |inner| inner.page(&query, &deletions)).await
    }
}
