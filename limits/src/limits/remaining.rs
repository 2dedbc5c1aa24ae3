//! What a limit leaves to a key.

use std::hash::Hash;

use super::Limits;
use crate::decision::{LimitId, Remaining};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// How many requests a limit would let go at once for a key, and when one more.
    ///
    /// # Panics
    /// When the limit is of another [`Limits`].
    #[must_use]
    pub fn remaining(&self, limit: LimitId, key: &K, now: u64) -> Remaining {
        let now = self.at_clock(now);
        let rule = &self.rules[limit.index()];
        let state = &*self.state_of(limit, key);
        let most = rule.limit.algorithm.max_burst();
        let goes = |requests| requests == 0 || rule.meter.earliest(state, requests, now) <= now;
        let is_it = |requests| goes(requests) && (requests == most || !goes(requests + 1));
        // What is used says it, but for roundings and gaps between slots.
        let mut requests = most.saturating_sub(rule.meter.used(state, now));
        if !is_it(requests) {
            let (mut goes_at_least, mut never) = (0, most + 1);
            while goes_at_least + 1 < never {
                let middle = goes_at_least.midpoint(never);
                if goes(middle) {
                    goes_at_least = middle;
                } else {
                    never = middle;
                }
            }
            requests = goes_at_least;
        }
        let more_at = if requests == most {
            now
        } else {
            rule.meter.earliest(state, requests + 1, now)
        };
        Remaining { requests, more_at }
    }
}
