//! Rescheduling of waiting calls.

use std::{collections::BTreeMap, hash::Hash, time::Duration};

use super::{DEMANDS_MAX, Limits};
use crate::decision::{Decision, Demand, LimitId};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Cancels the slots of waiting calls and reserves new ones in the same order, without a maximum wait. Use it after a limit changed.
    ///
    /// `waiting` must contain *all* waiting calls of the affected limits, for all keys, with their slots, in slot order. `rescheduled` is
    /// called with the index and the new decision of each call.
    ///
    /// If a rate changed, or if the earlier state of a limit is unknown, the usage of past calls is overestimated: no call is too early,
    /// but some may be slightly later than necessary.
    ///
    /// # Panics
    /// Like [`reserve`](Self::reserve).
    pub fn reschedule<'a>(
        &mut self,
        waiting: &[(&'a [Demand<K>], u64)],
        now: u64,
        mut rescheduled: impl FnMut(usize, Decision),
    ) where
        K: 'a,
    {
        let now = self.advance_clock(now);
        let future = || waiting.iter().enumerate().filter(|(_, (_, at))| *at > now);
        // The calls to cancel in each entry, from the last to the first.
        let mut cancelled: BTreeMap<u32, (LimitId, Vec<(u64, u64)>)> = BTreeMap::new();
        for (_, (demands, at)) in future().rev() {
            for it in self.merge::<DEMANDS_MAX>(demands).all() {
                if let Some(entry) = it.entry {
                    let calls = cancelled.entry(entry).or_insert((it.limit, Vec::new()));
                    calls.1.push((*at, it.requests));
                }
            }
        }
        for (entry, (limit, calls)) in cancelled {
            let meter = &self.limits[limit.index()].meter;
            self.keys.update(entry, |state| {
                meter.cancel(state, calls.into_iter(), now);
            });
        }
        for (index, (demands, _)) in future() {
            rescheduled(index, self.reserve(demands, now, Duration::MAX));
        }
    }
}
