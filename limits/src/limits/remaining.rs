//! The remaining quota of a key.

use std::hash::Hash;

use super::Limits;
use crate::decision::{LimitId, Remaining};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// The number of requests that a key could make now in one call, and the time at which it could make one more.
    ///
    /// # Panics
    /// If the limit belongs to another [`Limits`].
    pub fn remaining(&self, limit: LimitId, key: &K, now: u64) -> Remaining {
        let now = self.monotonic(now);
        let active = &self.limits[limit.index()];
        let state = &*self.state_of(limit, key);
        let max = active.limit.algorithm.max_burst();
        let fits = |requests| requests == 0 || active.meter.earliest(state, requests, now) <= now;
        let is_maximum = |requests| fits(requests) && (requests == max || !fits(requests + 1));
        // A guess that is correct except for rounding and gaps between slots.
        let mut requests = max.saturating_sub(active.meter.used(state, now));
        if !is_maximum(requests) {
            let mut too_many = max + 1;
            requests = 0;
            while requests + 1 < too_many {
                let middle = requests.midpoint(too_many);
                if fits(middle) {
                    requests = middle;
                } else {
                    too_many = middle;
                }
            }
        }
        let next = || active.meter.earliest(state, requests + 1, now);
        let more_at = if requests == max { now } else { next() };
        Remaining { requests, more_at }
    }
}
