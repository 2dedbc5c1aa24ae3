//! Usage of counters as last reported by the sharing server, for rate-limit headers and metrics.

use std::{collections::HashMap, sync::Arc};

use limits::{LimitId, Remaining};

/// Maximum number of remembered counters; the server has the usage of all. Half are in `newer`, half in `older`: a full
/// `newer` replaces `older`. A scan of all holds the lock.
const COUNTERS_MAX: usize = 8_000;

/// Last known usage of a counter under one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LastUsage {
    /// Requests that could proceed immediately.
    pub(super) remaining: u64,
    /// When one more request could proceed.
    pub(super) more_at: u64,
    /// When the counter no longer has any usage.
    pub(super) free_at: u64,
    /// When the server reported this usage.
    pub(super) observed_at: u64,
}

type UsageMap = HashMap<(LimitId, Arc<str>), LastUsage, foldhash::fast::RandomState>;

/// Usage of the counters queried most recently.
#[derive(Debug, Default)]
pub(super) struct RecentUsage {
    newer: UsageMap,
    older: UsageMap,
}

impl LastUsage {
    /// Estimates the requests of `max_burst` used at `now`, assuming that usage falls linearly until `free_at`.
    pub(super) fn used(&self, max_burst: u64, now: u64) -> u64 {
        let used = max_burst.saturating_sub(self.remaining);
        let rest = u128::from(self.free_at.saturating_sub(now));
        let total = u128::from(self.free_at.saturating_sub(self.observed_at)).max(1);
        let used = (u128::from(used) * rest).div_ceil(total);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}

impl RecentUsage {
    pub(super) fn insert(&mut self, limit: LimitId, counter: &Arc<str>, usage: LastUsage) {
        let key = (limit, Arc::clone(counter));
        if self.newer.len() >= COUNTERS_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, usage);
    }

    /// Remaining requests of `max_burst`; `None` if the counter is not remembered.
    pub(super) fn remaining(
        &self,
        limit: LimitId,
        counter: &Arc<str>,
        max_burst: u64,
        now: u64,
    ) -> Option<Remaining> {
        let key = (limit, Arc::clone(counter));
        let usage = self.newer.get(&key).or_else(|| self.older.get(&key))?;
        let is_free = usage.free_at <= now;
        Some(Remaining {
            requests: if is_free { max_burst } else { usage.remaining },
            more_at: if is_free { now } else { usage.more_at },
        })
    }

    /// Counters in use.
    pub(super) fn used(&self, now: u64) -> impl Iterator<Item = (LimitId, &Arc<str>, &LastUsage)> {
        let older = self.older.iter();
        let older = older.filter(|(key, _)| !self.newer.contains_key(*key));
        let all = self.newer.iter().chain(older);
        let used = all.filter(move |(_, usage)| usage.free_at > now);
        used.map(|((limit, counter), usage)| (*limit, counter, usage))
    }
}

#[cfg(test)]
mod tests {
    use limits::{Algorithm, Limits};

    use super::*;

    #[test]
    fn usage_ends_when_the_counter_is_free_and_memory_is_bounded() {
        let mut limits: Limits<()> = Limits::new(1);
        let limit = limits.add(Algorithm::token_bucket("1/s", 9).unwrap());
        let limit = limit.unwrap();
        let usage = LastUsage {
            remaining: 1,
            more_at: 150,
            free_at: 900,
            observed_at: 100,
        };
        let mut recent = RecentUsage::default();
        let counter = |number: usize| Arc::from(number.to_string());
        recent.insert(limit, &counter(0), usage);
        let remaining = |recent: &RecentUsage, number, now| {
            let remaining = recent.remaining(limit, &counter(number), 9, now);
            remaining.map(|it| it.requests)
        };
        assert_eq!(remaining(&recent, 0, 800), Some(1));
        assert_eq!(remaining(&recent, 0, 900), Some(9));
        assert_eq!(remaining(&recent, 1, 800), None);
        assert_eq!(
            [100, 500, 899, 900].map(|now| usage.used(9, now)),
            [8, 4, 1, 0]
        );
        let used = |recent: &RecentUsage, now| recent.used(now).count();
        assert_eq!((used(&recent, 899), used(&recent, 900)), (1, 0));
        for number in 0..10 * COUNTERS_MAX {
            recent.insert(limit, &counter(number), usage);
        }
        assert!((COUNTERS_MAX / 2..=COUNTERS_MAX).contains(&used(&recent, 0)));
        let newest = 10 * COUNTERS_MAX - COUNTERS_MAX / 4;
        assert_eq!(remaining(&recent, newest, 0), Some(1));
    }
}
