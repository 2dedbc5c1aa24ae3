//! Usage of all limits, for metrics and `/readyz`. The lock is held for up to 256 counters at a time, or for those
//! that the sharing server last reported.

use std::{sync::Arc, time::Duration};

use limits::{Algorithm, LimitId};

use super::{Counts, Engine, EngineState, catalog::Catalog};

/// Counters read under one lock.
const COUNTERS_PER_LOCK: usize = 256;

/// Usage of all limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageSummary {
    /// Sorted by name.
    pub limits: Vec<LimitUsage>,
    /// Number of counters, one per rule of a limit.
    pub counters: usize,
    /// Version of the limits.
    pub version: u64,
}

/// Usage of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUsage {
    /// Name of the limit.
    pub name: Arc<str>,
    /// Events since the start.
    pub counts: Counts,
    /// Number of counters in use, one per rule.
    pub counters: u64,
    /// The most-used counter, for limits with a window of an hour or more.
    pub quota: Option<TopCounter>,
    /// Number of counters with feedback restrictions.
    pub restricted: u64,
}

/// The most-used counter of a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopCounter {
    /// Used thousandths of the maximum burst; above 1,000 while calls wait.
    pub used_permille: u64,
    /// Name of the counter; empty for a global limit.
    pub counter: Arc<str>,
}

impl Engine {
    /// Usage of all limits at `now`.
    pub fn usage_summary(&self, now: u64) -> UsageSummary {
        let mut summary = self.state().limits_summary();
        let limits = &mut summary.limits;
        let mut from = Some(0);
        while let Some(index) = from {
            let state = self.state();
            if state.version != summary.version {
                // The limits changed; the next summary is complete again.
                break;
            }
            let catalog = &state.catalog;
            from = if state.counted_by_server {
                for (id, key, usage) in state.recent_usage.used(now) {
                    add(limits, catalog, id, key, |max_burst| {
                        usage.used(max_burst, now)
                    });
                }
                None
            } else {
                let core = &state.core;
                core.for_each_key(index, COUNTERS_PER_LOCK, now, |id, key, used| {
                    add(limits, catalog, id, key, |_| used);
                })
            };
        }
        summary
    }
}

impl EngineState {
    /// The summary without counters.
    fn limits_summary(&self) -> UsageSummary {
        let limits = self.catalog.all().map(|limit| {
            let mut rules = limit.rules.iter();
            let has_quota = rules.any(|it| is_quota(&it.rule.limit.algorithm));
            LimitUsage {
                name: Arc::clone(&limit.name),
                counts: limit.counts,
                counters: 0,
                quota: has_quota.then(TopCounter::default),
                restricted: self.feedback.counters_of(&limit.name) as u64,
            }
        });
        UsageSummary {
            limits: limits.collect(),
            counters: self.core.keys(),
            version: self.version,
        }
    }
}

/// Adds a counter; `used` returns its used requests, given the maximum burst.
fn add(
    limits: &mut [LimitUsage],
    catalog: &Catalog,
    id: LimitId,
    key: &Arc<str>,
    used: impl FnOnce(u64) -> u64,
) {
    let Some((owner, rule)) = catalog.owner(id) else {
        return;
    };
    let Ok(index) = limits.binary_search_by(|it| it.name.cmp(&owner.name)) else {
        return;
    };
    let limit = &mut limits[index];
    limit.counters += 1;
    let algorithm = &rule.rule.limit.algorithm;
    let max_burst = algorithm.max_burst();
    let used_permille = used(max_burst).saturating_mul(1_000) / max_burst;
    if let Some(top) = &mut limit.quota
        && is_quota(algorithm)
        && used_permille >= top.used_permille
    {
        *top = TopCounter {
            used_permille,
            counter: Arc::clone(key),
        };
    }
}

/// Whether it is a window of an hour or more, whose usage operators watch before it is exhausted.
fn is_quota(algorithm: &Algorithm) -> bool {
    let window = algorithm.window();
    window.is_some_and(|(_, window)| window >= Duration::from_secs(3_600))
}
