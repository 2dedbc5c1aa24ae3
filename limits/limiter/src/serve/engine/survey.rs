//! What is in use, for a page and for metrics: looked at a part of the counters at a time.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use limits::{Algorithm, LimitId};

use super::{Counting, Counts, Engine, catalog::Catalog, learned::Lesson, seen};

/// Counters that are looked at under the lock at once.
const PART: usize = 256;

/// Most of what is learned that is looked at.
const LESSONS_MAX: usize = 1_000;

/// How all limits stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// By name.
    pub limits: Vec<LimitSurvey>,
    /// The counters that are used most, in thousandths of what may go at once; the first is the fullest.
    pub fullest: Vec<Row>,
    /// Counters that are kept, each once for each rule.
    pub counters: usize,
    /// Counters of which something is learned.
    pub learned: usize,
    /// Some of what is learned, the strictest first.
    pub taught: Vec<Taught>,
    /// One more for each change of the limits.
    pub version: u64,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSurvey {
    /// Its name.
    pub name: Arc<str>,
    /// Its rules in words.
    pub rules: Vec<(Arc<str>, Arc<str>)>,
    /// What was done under it.
    pub counts: Counts,
    /// Counters, each once for each rule.
    pub counters: u64,
    /// How much the fullest of them is used, in thousandths of what may go at once; more while calls wait.
    pub used_permille: u64,
    /// The same of its rules with a window of an hour or more, if it has any.
    pub quota_permille: Option<u64>,
    /// Counters of which something is learned.
    pub learned: u64,
}

/// A counter under one rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Used, in thousandths of what may go at once.
    pub used_permille: u64,
    /// Requests that are used.
    pub used: u64,
    /// Those that may go at once after a pause.
    pub most: u64,
    /// When one could go.
    pub next: u64,
    /// The limit.
    pub limit: Arc<str>,
    /// The rule.
    pub rule: Arc<str>,
    /// The counter; empty for a limit of every call.
    pub counter: Arc<str>,
}

/// What a partner's answer said of a counter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taught {
    /// So many requests may go,
    pub left: u64,
    /// until then.
    pub until: u64,
    /// The limit.
    pub limit: Arc<str>,
    /// The counter.
    pub counter: Arc<str>,
}

impl Engine {
    /// How all limits stand at `now`, with the `rows` counters that are used most, and as many that are held by what is learned.
    #[must_use]
    pub fn survey(&self, rows: usize, now: u64) -> Survey {
        let mut survey = self.limits_now();
        let places: Vec<Option<usize>> = {
            let state = self.state();
            let mut places = vec![None; state.catalog.places()];
            for (index, (place, _)) in state.catalog.all().enumerate() {
                places[place as usize] = Some(index);
            }
            let is_same = state.version == survey.version;
            let mut taught = Vec::new();
            for ((place, counter), lesson) in state.learned.lessons().take(LESSONS_MAX) {
                let index = places.get(*place as usize).copied().flatten();
                let limit = index.and_then(|index| survey.limits.get(index));
                let Lesson { until, left } = *lesson;
                if let Some(limit) = limit.filter(|_| is_same && until > now) {
                    taught.push(Taught {
                        left,
                        until,
                        limit: Arc::clone(&limit.name),
                        counter: Arc::clone(counter),
                    });
                }
            }
            survey.taught = taught;
            places
        };
        survey.taught.sort_unstable();
        survey.taught.truncate(rows);
        let mut looking = Looking {
            limits: &mut survey.limits,
            places,
            rows,
            fullest: BinaryHeap::new(),
        };
        let mut from = Some(0);
        while let Some(place) = from {
            let state = self.state();
            if state.version != survey.version {
                // Of the limits that were: the next survey is of the others.
                break;
            }
            let catalog = &state.catalog;
            from = match self.options.counting {
                Counting::Here => state
                    .core
                    .each_key(place, PART, now, |id, key, used, next| {
                        looking.add(catalog, id, key, |_| used, next);
                    }),
                // What the server said last.
                Counting::Part(_) | Counting::Elsewhere => {
                    for (id, key, standing) in state.seen.used(place, now) {
                        let next = if standing.requests > 0 {
                            now
                        } else {
                            standing.more_at
                        };
                        looking.add(catalog, id, key, |most| standing.used(most, now), next);
                    }
                    (place + 1 < seen::PARTS).then_some(place + 1)
                }
            };
        }
        let fullest = looking.fullest.into_sorted_vec().into_iter();
        survey.fullest = fullest.map(|Reverse(row)| row).collect();
        survey
    }

    /// The same without a look at the counters.
    #[must_use]
    pub fn limits_now(&self) -> Survey {
        let state = self.state();
        let limits = state.catalog.all().map(|(place, named)| LimitSurvey {
            name: Arc::clone(&named.name),
            rules: named
                .rules
                .iter()
                .map(|placed| (Arc::clone(&placed.name), Arc::clone(&placed.words)))
                .collect(),
            counts: state.counts[place as usize],
            counters: 0,
            used_permille: 0,
            quota_permille: {
                let mut rules = named.rules.iter();
                let has_quota = rules.any(|it| is_quota(&it.rule.limit.algorithm));
                has_quota.then_some(0)
            },
            learned: state.learned.counters_of(place) as u64,
        });
        Survey {
            limits: limits.collect(),
            fullest: Vec::new(),
            taught: Vec::new(),
            counters: state.core.keys(),
            learned: state.learned.counters(),
            version: state.version,
        }
    }
}

/// A look at counters, one after the other.
struct Looking<'a> {
    limits: &'a mut [LimitSurvey],
    /// The index in `limits` of each place.
    places: Vec<Option<usize>>,
    rows: usize,
    fullest: BinaryHeap<Reverse<Row>>,
}

impl Looking<'_> {
    /// Adds a counter: how much of the most is used, and when one could go.
    fn add(
        &mut self,
        catalog: &Catalog,
        id: LimitId,
        key: &Arc<str>,
        used: impl FnOnce(u64) -> u64,
        next: u64,
    ) {
        let Some((place, named, placed)) = catalog.owner(id) else {
            return;
        };
        let most = placed.rule.limit.algorithm.most_at_once();
        let used = used(most);
        let used_permille = used.saturating_mul(1_000) / most;
        let index = self.places.get(place as usize).copied().flatten();
        if let Some(limit) = index.and_then(|index| self.limits.get_mut(index)) {
            limit.counters += 1;
            limit.used_permille = limit.used_permille.max(used_permille);
            if is_quota(&placed.rule.limit.algorithm) {
                limit.quota_permille = limit.quota_permille.max(Some(used_permille));
            }
        }
        let least = self.fullest.peek().map(|Reverse(row)| row.used_permille);
        if self.fullest.len() >= self.rows && least.is_none_or(|least| least >= used_permille) {
            return;
        }
        self.fullest.push(Reverse(Row {
            used_permille,
            used,
            most,
            next,
            limit: Arc::clone(&named.name),
            rule: Arc::clone(&placed.name),
            counter: Arc::clone(key),
        }));
        if self.fullest.len() > self.rows {
            self.fullest.pop();
        }
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
