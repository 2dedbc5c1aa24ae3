//! How much of each limit is in use, for metrics and `/readyz`: looked at a part of the counters at a time.

use std::{sync::Arc, time::Duration};

use limits::{Algorithm, LimitId};

use super::{Counting, Counts, Engine, catalog::Catalog, seen};

/// Counters that are looked at under the lock at once.
const PART: usize = 256;

/// How all limits stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// By name.
    pub limits: Vec<LimitSurvey>,
    /// Counters that are kept, each once for each rule.
    pub counters: usize,
    /// One more for each change of the limits.
    pub version: u64,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSurvey {
    /// Its name.
    pub name: Arc<str>,
    /// What was done under it.
    pub counts: Counts,
    /// Counters, each once for each rule.
    pub counters: u64,
    /// The counter that is used most under its rules with a window of an hour or more, if it has any.
    pub quota: Option<FullestCounter>,
    /// Counters of which something is learned.
    pub learned: u64,
}

/// The counter that is used most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FullestCounter {
    /// Thousandths of what may go at once; more while calls wait.
    pub used_permille: u64,
    /// Its name; empty for a limit of every call.
    pub counter: Arc<str>,
}

impl Engine {
    /// How all limits stand at `now`.
    #[must_use]
    pub fn survey(&self, now: u64) -> Survey {
        let mut survey = self.limits_now();
        let limits = &mut survey.limits;
        let mut from = Some(0);
        while let Some(place) = from {
            let state = self.state();
            if state.version != survey.version {
                // Of the limits that were: the next survey is of the others.
                break;
            }
            let catalog = &state.catalog;
            from = match self.options.counting {
                Counting::Here => state.core.for_each_key(place, PART, now, |id, key, used| {
                    add(limits, catalog, id, key, |_| used);
                }),
                // What the server said last.
                Counting::Part(_) | Counting::Elsewhere => {
                    for (id, key, standing) in state.seen.used(place, now) {
                        add(limits, catalog, id, key, |most| standing.used(most, now));
                    }
                    (place + 1 < seen::PARTS).then_some(place + 1)
                }
            };
        }
        survey
    }

    /// The same without a look at the counters.
    #[must_use]
    pub fn limits_now(&self) -> Survey {
        let state = self.state();
        let limits = state.catalog.all().map(|named| LimitSurvey {
            name: Arc::clone(&named.name),
            counts: named.counts,
            counters: 0,
            quota: {
                let mut rules = named.rules.iter();
                let has_quota = rules.any(|it| is_quota(&it.rule.limit.algorithm));
                has_quota.then(FullestCounter::default)
            },
            learned: state.learned.counters_of(&named.name) as u64,
        });
        Survey {
            limits: limits.collect(),
            counters: state.core.keys(),
            version: state.version,
        }
    }
}

/// Adds a counter: how much of what may go at once is used.
fn add(
    limits: &mut [LimitSurvey],
    catalog: &Catalog,
    id: LimitId,
    key: &Arc<str>,
    used: impl FnOnce(u64) -> u64,
) {
    let Some((named, placed)) = catalog.owner(id) else {
        return;
    };
    let Ok(index) = limits.binary_search_by(|it| it.name.cmp(&named.name)) else {
        return;
    };
    let limit = &mut limits[index];
    limit.counters += 1;
    let algorithm = &placed.rule.limit.algorithm;
    let most = algorithm.max_burst();
    let used_permille = used(most).saturating_mul(1_000) / most;
    if let Some(fullest) = &mut limit.quota
        && is_quota(algorithm)
        && used_permille >= fullest.used_permille
    {
        *fullest = FullestCounter {
            used_permille,
            counter: Arc::clone(key),
        };
    }
}

/// Whether it is a window of an hour or more, of which somebody wants to know before it is full.
fn is_quota(algorithm: &Algorithm) -> bool {
    match algorithm {
        Algorithm::FixedWindow { window, .. }
        | Algorithm::SlidingLog { window, .. }
        | Algorithm::SlidingCounter { window, .. }
        | Algorithm::StepWindow { window, .. } => *window >= Duration::from_secs(3_600),
        _ => false,
    }
}
