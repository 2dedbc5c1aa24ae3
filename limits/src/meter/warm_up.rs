//! The warm-up limiter: spaces calls by an interval; after idle time, the interval is up to three times the normal one. Each call
//! delays the next one.
//!
//! Idle time is *stored*, up to `warm_up`; a new key starts with `warm_up` stored. A call consumes one interval of stored time, or all
//! stored time if that is less. It delays the next call by the interval plus a surcharge of `2·(a² - b²)/warm_up`, where `a` and `b` are
//! the stored time above `half = warm_up/2` (0 if below) before and after the call. Example: with 1/s and a warm-up of 1 s, the first
//! call consumes 1 s, so that `a` is 0.5 s and `b` is 0. The surcharge is 0.5 s, and the second call is possible after 1.5 s.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{MeterKind, gcra::Gcra};
use crate::rate::Rate;

#[derive(Debug, Clone)]
pub(crate) struct WarmUp {
    /// The rate when warm, without bursts. All times "in units" have the unit of its theoretical arrival time.
    warm: Gcra,
    warm_up: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WarmUpState {
    /// Earliest time of the next call, in units.
    free: u128,
    /// Stored time at that moment, in nanoseconds.
    stored: u64,
}

impl WarmUp {
    pub(crate) fn new(rate: Rate, warm_up: Duration) -> Self {
        Self {
            warm: Gcra::new(rate, 1),
            warm_up: u64::try_from(warm_up.as_nanos()).expect("a checked time"),
        }
    }

    /// Surcharge for consuming the stored time from `high` down to `low`, rounded up.
    fn surcharge(&self, low: u64, high: u64) -> u64 {
        let half = self.warm_up / 2;
        let above = |stored: u64| u128::from(stored.saturating_sub(half));
        let squares = above(high).pow(2) - above(low).pow(2);
        let surcharge = (2 * squares).div_ceil(u128::from(self.warm_up));
        u64::try_from(surcharge).unwrap_or(u64::MAX)
    }

    /// The stored time at `at`.
    fn stored(&self, state: &WarmUpState, at: u64) -> u64 {
        let idle = self.warm.units(at).saturating_sub(state.free);
        let idle = u64::try_from(idle / self.warm.units(1)).unwrap_or(u64::MAX);
        state.stored.saturating_add(idle).min(self.warm_up)
    }
}

impl MeterKind for WarmUp {
    type State = WarmUpState;

    fn fresh(&self) -> Self::State {
        WarmUpState {
            free: 0,
            stored: self.warm_up,
        }
    }

    /// Time to cool down after a call.
    fn lookback(&self) -> u64 {
        let interval = self.warm.lookback();
        self.warm_up.saturating_mul(2).saturating_add(interval)
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        let as_at = |state: &WarmUpState| (self.warm.base(state.free, at), self.stored(state, at));
        as_at(one) == as_at(other)
    }

    fn earliest(&self, state: &Self::State, _requests: u64, from: u64) -> u64 {
        self.warm.due(state.free, 1, from)
    }

    fn charge(&self, state: &mut Self::State, requests: u64, at: u64) {
        let stored = self.stored(state, at);
        let base = self.warm.base(state.free, at);
        let interval = self.warm.units_of(requests);
        let used = interval.div_ceil(self.warm.units(1));
        let used = u64::try_from(used).unwrap_or(u64::MAX).min(stored);
        state.stored = stored - used;
        let surcharge = self.warm.units(self.surcharge(state.stored, stored));
        state.free = base.saturating_add(interval).saturating_add(surcharge);
    }

    /// Counts one call, unless calls up to an interval after `latest` are already counted.
    fn charge_reported(&self, state: &mut Self::State, _requests: u64, at: u64, latest: u64) {
        let latest = self.warm.units(latest) + self.warm.units_of(1);
        if state.free < latest {
            self.charge(state, 1, at);
        }
    }

    /// The consumed stored time is unknown by now, so only the interval is refunded.
    fn refund(&self, state: &mut Self::State, requests: u64, _at: u64) {
        state.free = state.free.saturating_sub(self.warm.units_of(requests));
    }

    fn is_idle(&self, state: &Self::State, now: u64) -> bool {
        state.free <= self.warm.units(now) && self.stored(state, now) == self.warm_up
    }

    fn used(&self, state: &Self::State, now: u64) -> u64 {
        let debt = state.free.saturating_sub(self.warm.units(now));
        u64::try_from(debt.div_ceil(self.warm.units_of(1))).unwrap_or(u64::MAX)
    }
}
