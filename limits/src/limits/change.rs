//! Limits get other numbers while calls wait.

use std::hash::Hash;

use super::Limits;
use crate::{
    decision::{Limit, LimitId},
    meter::{CarryOver, Meter},
    rate::RateError,
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Gives any number of limits, one after the other, other numbers at `now`, or other algorithms: visits all keys of all limits, once.
    /// What their keys have used follows as each `carry` says. Calls that wait keep their moments; see [`replan`](Self::replan). Keys in use
    /// stay, also when they take more memory then than there may be.
    ///
    /// # Errors
    /// When the numbers of one cannot be kept to: then nothing changes.
    ///
    /// # Panics
    /// When a limit is of another [`Limits`].
    pub fn change_all(
        &mut self,
        changes: &[(LimitId, Limit, CarryOver)],
        now: u64,
    ) -> Result<(), RateError> {
        for (_, limit, _) in changes {
            limit.algorithm.checked()?;
        }
        let now = self.pass_to(now);
        for (id, limit, _) in changes {
            let meter = Meter::new(&limit.algorithm);
            self.keys.change_limit(*id, meter.bytes_each());
        }
        if self.keys.is_beyond_bytes() {
            // Only what is in use is made larger.
            self.evict_idle(usize::MAX, now);
        }
        let mut steps: Vec<Vec<(Meter, Meter, CarryOver)>> = Vec::new();
        // Where the steps of each limit are.
        let mut places = vec![usize::MAX; self.rules.len()];
        for (id, limit, carry) in changes {
            let meter = Meter::new(&limit.algorithm);
            let rule = &mut self.rules[id.index()];
            rule.limit = *limit;
            let from = std::mem::replace(&mut rule.meter, meter.clone());
            let unseen = match &rule.unseen {
                Some(state) => Some(meter.carried(&from, state, *carry, now)),
                // A key that comes later has saved up what one would have that was there, and idle, all the time.
                None if *carry == CarryOver::Remaining => {
                    Some(meter.carried(&from, &from.fresh(), *carry, now))
                }
                None => None,
            };
            rule.unseen = unseen.filter(|it| !meter.is_idle(it, now));
            let place = &mut places[id.index()];
            if *place == usize::MAX {
                *place = steps.len();
                steps.push(Vec::new());
            }
            steps[*place].push((from, meter, *carry));
        }
        let steps_of = |limit: LimitId| steps.get(places[limit.index()]);
        let carry_over = |limit, state: &mut _| {
            for (from, to, carry) in steps_of(limit).into_iter().flatten() {
                *state = to.carried(from, state, *carry, now);
            }
        };
        self.keys
            .each_of(|limit| steps_of(limit).is_some(), carry_over);
        Ok(())
    }
}
