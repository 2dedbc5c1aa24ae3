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
use proto::units::UnixMicros;

use super::records::{dsp_of, time};
use crate::ttl::Ttls;

/// Creates the filters of compactions. The store and all filters share it. A panic leaves the TTLs and the counter consistent.
#[derive(Debug, Clone)]
pub(super) struct ExpiryFilter(Arc<AssertUnwindSafe<SharedExpiry>>);

#[derive(Debug)]
struct SharedExpiry {
    ttls: Ttls,
    /// The time at which cookies expire; 0 disables expiry.
    now: AtomicU64,
    removed: AtomicU64,
}

impl ExpiryFilter {
    pub(super) fn new(ttls: Ttls) -> Self {
        Self(Arc::new(AssertUnwindSafe(SharedExpiry {
            ttls,
            now: AtomicU64::new(0),
            removed: AtomicU64::new(0),
        })))
    }

    pub(super) fn set_now(&self, now: UnixMicros) {
        self.0.now.store(now.0, Ordering::Relaxed);
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
            now: UnixMicros(self.0.now.load(Ordering::Relaxed)),
            removed: 0,
        })
    }
}

/// The filter of one compaction.
struct Filter {
    expiry: ExpiryFilter,
    now: UnixMicros,
    removed: u64,
}

impl CompactionFilter for Filter {
    /// `Remove` leaves a tombstone on every level except the last, so that no older value reappears.
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        if self.now == UnixMicros::NONE {
            return Ok(Verdict::Keep);
        }
        let Some(dsp_id) = dsp_of(item.key()) else {
            return Ok(Verdict::Keep);
        };
        let before = self.expiry.0.ttls.expired_before(dsp_id, self.now);
        let value = item.value()?;
        if time(&value).is_some_and(|accepted| accepted < before) {
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
