//! A compaction filter that deletes expired cookies.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};

use super::records::{be_u64, dsp_of};
use crate::ttl::Ttls;

/// Creates the filters of compactions. The store and all filters share it. A panic leaves the TTLs and the counter consistent.
#[derive(Debug, Clone)]
pub(super) struct ExpiryFilter(Arc<AssertUnwindSafe<SharedExpiry>>);

#[derive(Debug)]
struct SharedExpiry {
    ttls: Ttls,
    /// The time at which cookies expire; 0 disables expiry.
    now_unix_micros: AtomicU64,
    removed: AtomicU64,
}

impl ExpiryFilter {
    pub(super) fn new(ttls: Ttls) -> Self {
        Self(Arc::new(AssertUnwindSafe(SharedExpiry {
            ttls,
            now_unix_micros: AtomicU64::new(0),
            removed: AtomicU64::new(0),
        })))
    }

    pub(super) fn set_now(&self, unix_micros: u64) {
        let now = &self.0.now_unix_micros;
        now.store(unix_micros, Ordering::Relaxed);
    }

    /// Number of deleted values since the last call.
    pub(super) fn take_removed(&self) -> u64 {
        self.0.removed.swap(0, Ordering::Relaxed)
    }
}

impl Factory for ExpiryFilter {
    fn name(&self) -> &'static str {
        "expiry"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Filter {
            expiry: self.clone(),
            now: self.0.now_unix_micros.load(Ordering::Relaxed),
            removed: 0,
        })
    }
}

/// The filter of one compaction.
struct Filter {
    expiry: ExpiryFilter,
    now: u64,
    removed: u64,
}

impl CompactionFilter for Filter {
    /// `Remove` leaves a tombstone on every level except the last, so that no older value reappears.
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        if self.now == 0 {
            return Ok(Verdict::Keep);
        }
        let Some(dsp_id) = dsp_of(item.key()) else {
            return Ok(Verdict::Keep);
        };
        let before = self.expiry.0.ttls.expired_before(dsp_id, self.now);
        let value = item.value()?;
        if be_u64(&value).is_some_and(|accepted| accepted < before) {
            self.removed += 1;
            return Ok(Verdict::Remove);
        }
        Ok(Verdict::Keep)
    }

    fn finish(self: Box<Self>) {
        let removed = &self.expiry.0.removed;
        removed.fetch_add(self.removed, Ordering::Relaxed);
    }
}
