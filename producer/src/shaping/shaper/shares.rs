//! Limits that several producers share: each goes by its share, which changes while cookies wait.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use limits::{
    Algorithm, CarryOver, Limit, Rate,
    rules::{NamedLimit, Rules},
};

use super::{NamedRoom, Shaper, change::slower};

/// One request in so long is as good as none.
const NO_SHARE: Duration = Duration::from_secs(10 * 366 * 86_400);

/// What this process may use of each limit. Nothing is shared unless it is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::shaping) struct Shares {
    /// In millionths, by the limits' names.
    pub(in crate::shaping) of: BTreeMap<String, u64>,
    /// How many may share: windows, whose shares cannot move, are divided by it. None when nothing is shared.
    pub(in crate::shaping) members_max: Option<u64>,
    /// Whether the server refuses this process: then it has no part of windows either.
    pub(in crate::shaping) is_refused: bool,
}

impl Shares {
    /// What is left of a rule for this process.
    pub(super) fn limit(&self, name: &str, limit: Limit) -> Limit {
        let Some(members_max) = self.members_max else {
            return limit;
        };
        let share = self.of.get(name).copied().unwrap_or(0);
        let algorithm = limit.algorithm.share(share).unwrap_or_else(|| {
            let part = limit.algorithm.static_share(members_max).ok();
            // A later file may be checked for fewer than those of the start: where no part is left, nothing goes.
            part.filter(|_| !self.is_refused)
                .unwrap_or_else(|| Algorithm::TokenBucket {
                    rate: Rate::new(1, NO_SHARE).expect("ten years fit"),
                    burst: 1,
                })
        });
        Limit { algorithm, ..limit }
    }
}

impl Shaper {
    /// Goes by other shares from now on. Nobody gets a burst anew, and those that wait are planned by the new rates.
    pub(in crate::shaping) fn share(&mut self, rules: &Rules, shares: Shares, now: u64) {
        let now = now.max(self.latest);
        self.shares = shares;
        let mut changes = Vec::new();
        for limit in &rules.limits {
            for rule in &limit.rules {
                for is_observed in [false, true] {
                    let name = (limit.name.clone(), rule.id.clone(), is_observed);
                    let Some(&number) = self.numbers.get(&name) else {
                        continue;
                    };
                    let shared = self.shares.limit(&limit.name, rule.limit);
                    if *self.limits.limit(number) != shared {
                        changes.push((number, shared, CarryOver::Remaining));
                    }
                }
            }
        }
        if changes.is_empty() {
            return;
        }
        let changed = self.limits.change_all(&changes, now);
        changed.expect("a share of a checked limit");
        let global = rules.limits.iter().filter(|limit| limit.global);
        let shared = self.slowest(global);
        let by_name: HashMap<_, _> = rules.limits.iter().map(|it| (&*it.name, it)).collect();
        let rates: Vec<Option<Rate>> = self
            .rooms
            .iter()
            .map(|place| self.slowest(by_name.get(&*place.name).copied()))
            .collect();
        for (place, own) in self.rooms.iter_mut().zip(rates) {
            if !place.is_closing {
                place.room.set_rates(own, shared, now);
            }
        }
        self.replan(now);
        self.due = 0;
    }

    /// The slowest of these limits' rates, by the shares of this process.
    fn slowest<'a>(&self, limits: impl IntoIterator<Item = &'a NamedLimit>) -> Option<Rate> {
        let limits = limits.into_iter();
        let rules = limits.flat_map(|limit| limit.rules.iter().map(move |rule| (limit, rule)));
        rules.fold(None, |slowest, (limit, rule)| {
            let shared = self.shares.limit(&limit.name, rule.limit);
            Some(slower(slowest, shared.algorithm.mean_rate()))
        })
    }

    /// What each limit whose share can move could use since this was asked last, in millionths of it; of a limit of several keys the one that could use
    /// most. What waits counts as if it were to go within `timeout`.
    pub(in crate::shaping) fn demands(
        &mut self,
        rules: &Rules,
        elapsed: u64,
        timeout: u64,
    ) -> Vec<(String, u64)> {
        let elapsed = elapsed.max(1);
        let mut most: HashMap<&str, u64> = HashMap::new();
        let mut all = 0;
        for place in &mut self.rooms {
            let wanted = place.wanted(elapsed, timeout);
            all += wanted;
            let known = most.entry(&place.name).or_default();
            *known = wanted.max(*known);
        }
        let demand = |limit: &NamedLimit| {
            let wanted = match limit.global {
                true => all,
                false => most.get(&*limit.name).copied().unwrap_or(0),
            };
            let algorithms = limit.rules.iter().map(|rule| rule.limit.algorithm);
            let rates = algorithms.filter_map(|it| it.share(1).map(|_| it.mean_rate()));
            let millionths = wanted.saturating_mul(1_000_000);
            let demand = rates
                .map(|rate| rate.nanos_of(millionths) / elapsed)
                .max()?;
            Some((limit.name.clone(), demand))
        };
        rules.limits.iter().filter_map(demand).collect()
    }
}

impl NamedRoom {
    /// How many cookies would have gone since this was asked last if nothing had held them up.
    fn wanted(&mut self, elapsed: u64, timeout: u64) -> u64 {
        let came = self.room.figures.came();
        let new = came - std::mem::replace(&mut self.counted, came);
        let waiting = u128::from(self.room.waiting()) * u128::from(elapsed) / u128::from(timeout);
        new.saturating_add(u64::try_from(waiting).unwrap_or(u64::MAX))
    }
}
