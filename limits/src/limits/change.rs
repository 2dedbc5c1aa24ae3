//! Changes to limits while calls wait.

use std::hash::Hash;

use super::Limits;
use crate::{
    decision::{Limit, LimitId},
    meter::{CarryOver, Meter},
    rate::RateError,
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Changes the parameters or algorithms of any number of limits at `now`, in one pass over all keys.
    ///
    /// The usage of keys is converted as each [`CarryOver`] defines. Waiting calls keep their slots; see [`reschedule`](Self::reschedule).
    /// Keys in use are not evicted, even if they exceed the memory bound under the new limits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use limits::{Algorithm, CarryOver, Decision, Demand, Limits};
    ///
    /// let mut limits = Limits::new(100);
    /// let limit = limits.add(Algorithm::token_bucket("1/s", 5)?)?;
    /// let now = 1_700_000_000_000_000_000;
    /// let call = [Demand { limit, key: "alice", requests: 4 }];
    /// assert_eq!(limits.reserve(&call, now, Duration::ZERO), Decision::Now);
    /// // The four used requests stay used: of the new burst of ten, six remain.
    /// let faster = Algorithm::token_bucket("2/s", 10)?;
    /// limits.change_all(&[(limit, faster.into(), CarryOver::Usage)], now)?;
    /// assert_eq!(limits.remaining(limit, &"alice", now).requests, 6);
    /// # Ok::<(), limits::RateError>(())
    /// ```
    ///
    /// # Errors
    /// If the parameters of a limit are invalid. Then nothing changes.
    ///
    /// # Panics
    /// If a limit has several changes, or belongs to another [`Limits`].
    pub fn change_all(
        &mut self,
        changes: &[(LimitId, Limit, CarryOver)],
        now: u64,
    ) -> Result<(), RateError> {
        for (_, limit, _) in changes {
            limit.algorithm.checked()?;
        }
        let now = self.advance_clock(now);
        for (id, limit, _) in changes {
            let meter = Meter::new(&limit.algorithm);
            self.keys.change_limit(*id, meter.bytes_per_key());
        }
        if self.keys.exceeds_bytes() {
            // Only keys in use may exceed the bound.
            self.evict_idle(usize::MAX, now);
        }
        // By limit: the meters before and after its change.
        let mut converters = vec![None; self.limits.len()];
        for (id, limit, carry) in changes {
            let meter = Meter::new(&limit.algorithm);
            let active = &mut self.limits[id.index()];
            active.limit = *limit;
            let from = std::mem::replace(&mut active.meter, meter.clone());
            let initial = match &active.initial {
                Some(state) => Some(meter.carried_over(&from, state, *carry, now)),
                // A new key has the same remaining quota as a key that was idle during the change.
                None if *carry == CarryOver::Remaining => {
                    Some(meter.carried_over(&from, &from.fresh(), *carry, now))
                }
                None => None,
            };
            active.initial = initial.filter(|it| !meter.is_idle(it, now));
            let before = converters[id.index()].replace((from, meter, *carry));
            assert!(before.is_none(), "a limit has one change at a time");
        }
        let is_changed = |limit: LimitId| converters[limit.index()].is_some();
        self.keys.update_all(is_changed, |limit, state| {
            if let Some((from, to, carry)) = &converters[limit.index()] {
                *state = to.carried_over(from, state, *carry, now);
            }
        });
        Ok(())
    }
}
