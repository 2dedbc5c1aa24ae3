//! Shares of this producer in limits that several producers share. Shares may change while cookies are queued.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use limits::{
    Algorithm, CarryOver, Limit, Rate,
    rules::{NamedLimit, Rules},
};

use super::{DspLimits, NamedQueue, RuleName};
use crate::inlet::clock::MonotonicNanos;

/// A share of zero is represented as one request per this interval.
const NO_SHARE: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Share of each limit that this process may use; by default, the whole limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::inlet) struct Shares {
    /// Shares in millionths, by limit name.
    pub(in crate::inlet) by_limit: BTreeMap<String, u64>,
    /// Maximum number of members. The share of a window is static: 1/`members_max`. `None` without sharing.
    pub(in crate::inlet) members_max: Option<u64>,
    /// Whether the server rejects this process; it then has no share of windows either.
    pub(in crate::inlet) is_refused: bool,
}

impl Shares {
    /// All rules, each with the share of this process; those of global limits twice, because observe mode has copies of them.
    pub(super) fn rules(&self, rules: &Rules) -> Vec<(RuleName, Limit)> {
        let mut shares = Vec::new();
        for limit in &rules.limits {
            for rule in &limit.rules {
                let share = self.limit(&limit.name, rule.limit);
                for &is_observed in &[false, true][..1 + usize::from(limit.global)] {
                    let name = (limit.name.clone(), rule.id.clone(), is_observed);
                    shares.push((name, share));
                }
            }
        }
        shares
    }

    /// The share of this process in a rule.
    pub(super) fn limit(&self, name: &str, limit: Limit) -> Limit {
        let Some(members_max) = self.members_max else {
            return limit;
        };
        let share = self.by_limit.get(name).copied().unwrap_or(0);
        let algorithm = limit.algorithm.share(share).unwrap_or_else(|| {
            let guaranteed_share = limit.algorithm.guaranteed_share(members_max).ok();
            // `members_max` may be missing: the file may have changed since it was checked at the start.
            guaranteed_share
                .filter(|_| !self.is_refused)
                .unwrap_or_else(|| Algorithm::TokenBucket {
                    rate: Rate::new(1, NO_SHARE).expect("a valid rate"),
                    burst: 1,
                })
        });
        Limit { algorithm, ..limit }
    }
}

impl DspLimits {
    /// Changes the shares. Used quota is kept, so no burst is granted twice. Queued cookies are planned at the new rates.
    pub(in crate::inlet) fn set_shares(
        &mut self,
        rules: &Rules,
        shares: Shares,
        now: MonotonicNanos,
    ) {
        let now = now.max(self.latest);
        self.shares = shares;
        let mut changes = Vec::new();
        for (name, share) in self.shares.rules(rules) {
            let id = self.limit_ids[&name];
            if *self.limits.limit(id) != share {
                changes.push((id, share, CarryOver::Remaining));
            }
        }
        if changes.is_empty() {
            return;
        }
        let changed = self.limits.change_all(&changes, now.0);
        changed.expect("a share of a checked limit");
        let global = rules.limits.iter().filter(|limit| limit.global);
        let global_rate = self.lowest_rate(global);
        let by_name: HashMap<_, _> = rules.limits.iter().map(|it| (&*it.name, it)).collect();
        let own_rates: Vec<Option<Rate>> = self
            .queues
            .iter()
            .map(|named| self.lowest_rate(by_name.get(&*named.name).copied()))
            .collect();
        for (named, own_rate) in self.queues.iter_mut().zip(own_rates) {
            if !named.is_closing {
                named.queue.set_rates(own_rate, global_rate, now);
            }
        }
        self.replan(now);
        self.due = MonotonicNanos::PAST;
    }

    /// The lowest rate of these limits, scaled by the shares.
    pub(super) fn lowest_rate<'a>(
        &self,
        limits: impl IntoIterator<Item = &'a NamedLimit>,
    ) -> Option<Rate> {
        let limits = limits.into_iter();
        let rules = limits.flat_map(|limit| limit.rules.iter().map(move |rule| (limit, rule)));
        let rates = rules.map(|(limit, rule)| {
            let share = self.shares.limit(&limit.name, rule.limit);
            share.algorithm.mean_rate()
        });
        rates.max_by_key(|rate| rate.nanos_of(1_000_000))
    }

    /// Demand since the last call for each limit whose share can change, in millionths of the limit. If a limit has several
    /// keys, the highest demand of a key counts. Queued cookies count as if they were released within `timeout`.
    pub(in crate::inlet) fn demands(
        &mut self,
        rules: &Rules,
        elapsed: u64,
        timeout: u64,
    ) -> Vec<(String, u64)> {
        let elapsed = elapsed.max(1);
        let mut by_limit: HashMap<&str, u64> = HashMap::new();
        let mut total = 0;
        for named in &mut self.queues {
            let demand = named.demand(elapsed, timeout);
            total += demand;
            let known = by_limit.entry(&named.name).or_default();
            *known = demand.max(*known);
        }
        let demand = |limit: &NamedLimit| {
            let cookies = match limit.global {
                true => total,
                false => by_limit.get(&*limit.name).copied().unwrap_or(0),
            };
            let algorithms = limit.rules.iter().map(|rule| rule.limit.algorithm);
            let rates = algorithms.filter_map(|it| it.share(1).map(|_| it.mean_rate()));
            let millionths = cookies.saturating_mul(1_000_000);
            let demand = rates
                .map(|rate| rate.nanos_of(millionths) / elapsed)
                .max()?;
            Some((limit.name.clone(), demand))
        };
        rules.limits.iter().filter_map(demand).collect()
    }
}

impl NamedQueue {
    /// Number of cookies that an unlimited queue would have released since the last call.
    fn demand(&mut self, elapsed: u64, timeout: u64) -> u64 {
        let accepted = self.queue.counters.accepted_total();
        let new = accepted - std::mem::replace(&mut self.accepted_before, accepted);
        let queued = u128::from(self.queue.queued()) * u128::from(elapsed) / u128::from(timeout);
        new.saturating_add(u64::try_from(queued).unwrap_or(u64::MAX))
    }
}
