//! Calls that wait are planned anew.

use std::{collections::BTreeMap, hash::Hash, time::Duration};

use super::{DEMANDS_MAX, Limits};
use crate::decision::{Decision, Demand, LimitId};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Takes calls back that wait, and gives them new moments in their order, however late, as after a change of a
    /// limit. `waiting` has *all* calls that wait in the limits concerned, of all their keys, in the order of
    /// their moments; for each of them `planned` is told what becomes of it.
    ///
    /// After a change of the price, and in limits that do not know how they stood before, what has gone counts for as much as it may
    /// have been: nothing goes too early, and some calls may go a little later than they could.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve) does.
    pub fn reschedule<'a>(
        &mut self,
        waiting: &[(&'a [Demand<K>], u64)],
        now: u64,
        mut planned: impl FnMut(usize, Decision),
    ) where
        K: 'a,
    {
        let now = self.pass_to(now);
        let to_come = || waiting.iter().enumerate().filter(|(_, (_, at))| *at > now);
        // What each state has to give back, from the last to the first.
        let mut of_states: BTreeMap<u32, (LimitId, Vec<(u64, u64)>)> = BTreeMap::new();
        for (_, (demands, at)) in to_come().rev() {
            for concern in self.concerns::<DEMANDS_MAX>(demands).all() {
                if let Some(entry) = concern.entry {
                    let (_, calls) = of_states
                        .entry(entry)
                        .or_insert((concern.limit, Vec::new()));
                    calls.push((*at, concern.requests));
                }
            }
        }
        for (entry, (limit, calls)) in of_states {
            let meter = &self.rules[limit.index()].meter;
            self.keys.update(entry, |state| {
                meter.reopen(state, calls.into_iter(), now);
            });
        }
        for (index, (demands, _)) in to_come() {
            planned(index, self.reserve(demands, now, Duration::MAX));
        }
    }
}
