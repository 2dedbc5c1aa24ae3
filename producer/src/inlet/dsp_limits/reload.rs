//! Applies a new version of the limits: creates, reconfigures and closes queues, carries over used quota, and reschedules
//! queued cookies.

use std::collections::{BTreeMap, HashMap};

use limits::{
    CarryOver, Decision, Demand,
    rules::{NamedLimit, Rules, Unknown},
};
use proto::units::DspId;

use super::{DspLimits, NamedQueue, SHARED_KEY};
use crate::inlet::{
    clock::MonotonicNanos,
    queue::{DspQueue, QueueConfig},
};

impl DspLimits {
    /// Replaces the rules. Used quota is kept, and queued cookies follow the new rules.
    pub(in crate::inlet) fn set_rules(&mut self, rules: &Rules, now: MonotonicNanos) {
        self.assign_limit_ids(rules, now);
        self.by_dsp.clear();
        self.unlisted = None;
        for named in &mut self.queues {
            named.is_closing = true;
        }
        let known = self.queues.iter().enumerate();
        let known = known.map(|(index, named)| ((named.name.clone(), named.key), index));
        let known: HashMap<_, _> = known.collect();
        for (index, limit) in rules.limits.iter().enumerate() {
            if limit.global {
                continue;
            }
            for key in limit.keys.iter().filter_map(|key| key.parse().ok()) {
                let queue = self.configure_queue(rules, limit, key, &known, now);
                self.by_dsp.insert(key, queue);
            }
            if rules.unknown == Unknown::Limit(index) {
                let queue = self.configure_queue(rules, limit, SHARED_KEY, &known, now);
                self.unlisted = Some(queue);
            }
        }
        self.find_stray_queues();
        self.replan(now);
        self.due = MonotonicNanos::PAST;
    }

    /// Assigns a limit id to each rule. A rule that has an id keeps it, and with it its used quota.
    fn assign_limit_ids(&mut self, rules: &Rules, now: MonotonicNanos) {
        let mut previous = std::mem::take(&mut self.limit_ids);
        let mut changes = Vec::new();
        for (name, share) in self.shares.rules(rules) {
            let id = match previous.remove(&name) {
                Some(id) => {
                    if *self.limits.limit(id) != share {
                        changes.push((id, share, CarryOver::Usage));
                    }
                    id
                }
                None => match self.free_limit_ids.pop() {
                    Some(id) => {
                        changes.push((id, share, CarryOver::Reset));
                        id
                    }
                    None => self.limits.add(share).expect("the file was checked"),
                },
            };
            self.limit_ids.insert(name, id);
        }
        for id in previous.into_values() {
            // The next owner of the id must not inherit its used quota.
            changes.push((id, *self.limits.limit(id), CarryOver::Reset));
            self.free_limit_ids.push(id);
        }
        let changed = self.limits.change_all(&changes, now.0);
        changed.expect("the file was checked");
        self.limits.evict_idle(usize::MAX, now.0);
    }

    /// Creates or reconfigures the queue of a limit and key; returns its index.
    fn configure_queue(
        &mut self,
        rules: &Rules,
        limit: &NamedLimit,
        key: DspId,
        known: &HashMap<(String, DspId), usize>,
        now: MonotonicNanos,
    ) -> usize {
        let global = || rules.limits.iter().filter(|limit| limit.global);
        let (mut demands, mut observed, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for under in std::iter::once(limit).chain(global()) {
            for rule in &under.rules {
                let demand = |is_observed| {
                    let name = (under.name.clone(), rule.id.clone(), is_observed);
                    Demand {
                        limit: self.limit_ids[&name],
                        key: if under.global { SHARED_KEY } else { key },
                        requests: 1,
                    }
                };
                demands.push(demand(false));
                observed.push(demand(under.global));
                names.push(if under.global {
                    format!("{}/{}", under.name, rule.id)
                } else {
                    rule.id.clone()
                });
            }
        }
        let config = QueueConfig {
            handling: limit.handling,
            demands,
            observed,
            own_count: limit.rules.len(),
            rules: names,
            own_rate: self.lowest_rate([limit]),
            global_rate: self.lowest_rate(global()),
        };
        if let Some(&index) = known.get(&(limit.name.clone(), key)) {
            let named = &mut self.queues[index];
            named.is_closing = false;
            named.queue.set_config(config, now);
            return index;
        }
        self.queues.push(NamedQueue {
            name: limit.name.clone(),
            key,
            queue: DspQueue::new(config),
            accepted_before: 0,
            is_closing: false,
            unsettled: 0,
            is_listed: false,
        });
        self.queues.len() - 1
    }

    /// Replaces all reserved slots with slots under the current limits.
    pub(super) fn replan(&mut self, now: MonotonicNanos) {
        let mut reserved: Vec<(usize, MonotonicNanos)> = Vec::new();
        for (index, named) in self.queues.iter().enumerate() {
            reserved.extend(named.queue.slots().map(|slot| (index, slot)));
        }
        reserved.sort_by_key(|(_, slot)| *slot);
        let calls: Vec<(&[Demand<DspId>], u64)> = reserved
            .iter()
            .map(|(index, slot)| (&*self.queues[*index].queue.config.demands, slot.0))
            .collect();
        let mut slots: BTreeMap<usize, Vec<MonotonicNanos>> = BTreeMap::new();
        for (index, slot) in reserved.iter().filter(|(_, slot)| *slot <= now) {
            slots.entry(*index).or_default().push(*slot);
        }
        let planned = |call: usize, decision: Decision| {
            // If the reservation is refused, `reserve_slots` repeats it later.
            if let Some(slot) = decision.at(now.0) {
                slots
                    .entry(reserved[call].0)
                    .or_default()
                    .push(MonotonicNanos(slot));
            }
        };
        self.limits.reschedule(&calls, now.0, planned);
        for (index, named) in self.queues.iter_mut().enumerate() {
            let slots = slots.remove(&index).unwrap_or_default();
            named.queue.set_slots(slots);
        }
    }

    /// Finds queues that may contain cookies of DSPs that now have another queue: closing queues, and the queue of unlisted
    /// DSPs.
    pub(super) fn find_stray_queues(&mut self) {
        let is_stray = |(index, named): &(usize, &NamedQueue)| {
            named.queue.len() > 0 && (named.is_closing || Some(*index) == self.unlisted)
        };
        self.stray_queues.clear();
        for (index, named) in self.queues.iter().enumerate().filter(is_stray) {
            self.stray_queues.entry(named.key).or_default().push(index);
        }
    }

    /// Removes closing queues that are empty. Their counters are kept while their limit has another queue.
    pub(super) fn remove_closed_queues(&mut self) {
        let is_closed = |named: &NamedQueue| named.is_closing && named.queue.len() == 0;
        if !self.queues.iter().any(is_closed) {
            return;
        }
        let queues = std::mem::take(&mut self.queues).into_iter();
        let (closed, open): (Vec<_>, _) = queues.partition(is_closed);
        self.queues = open;
        for NamedQueue { name, queue, .. } in closed {
            if let Some(other) = self.queues.iter_mut().find(|it| it.name == name) {
                other.accepted_before += queue.counters.accepted_total();
                other.queue.counters.add(&queue.counters);
                other.queue.counters.retain_rules(&other.queue.config.rules);
            }
        }
        self.by_dsp.clear();
        self.unlisted = None;
        self.non_empty.clear();
        for (index, named) in self.queues.iter().enumerate() {
            if named.is_listed {
                self.non_empty.push(index);
            }
            match named.key {
                _ if named.is_closing => {}
                SHARED_KEY => self.unlisted = Some(index),
                dsp => drop(self.by_dsp.insert(dsp, index)),
            }
        }
        self.find_stray_queues();
    }
}
