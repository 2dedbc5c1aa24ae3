//! The warm-up limiter: a call passes at once when those before it are paid for, and the next waits for what it costs.
//!
//! What was not used is *stored*, up to the warm-up time, as time; and a stored request is dearer the more is stored, because
//! who did nothing for long is cold. A fresh one is stored to the brim. The price of a moment of stored time, `x` of it
//! stored, is 1 up to half of the warm-up time, and grows from there to 3 at its end: `1 + 4·(x - half)/warm_up`. With 1 request
//! a second and a second of warm-up, the first costs 0.5 s above the half at a price of 2 on average, and 0.5 s below at
//! 1: the second passes after 1.5 s.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Method;
use crate::rate::Rate;

#[derive(Debug, Clone)]
pub(crate) struct WarmUp {
    /// Parts of a nanosecond; see [`gcra`](super::gcra).
    requests: u64,
    /// The interval when warm, in those parts.
    nanos: u64,
    warm_up: u64,
}

/// The state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Heat {
    /// When all that has passed is paid for, in parts of a nanosecond.
    free: u128,
    /// Time stored at that moment, in nanoseconds.
    stored: u64,
}

impl WarmUp {
    pub(crate) fn new(rate: Rate, warm_up: Duration) -> Self {
        Self {
            requests: rate.requests(),
            nanos: rate.nanos(),
            warm_up: u64::try_from(warm_up.as_nanos()).expect("a checked time"),
        }
    }

    fn parts(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.requests)
    }

    /// What the stored time from `low` to `high` costs more than it is long, rounded up.
    fn surcharge(&self, low: u64, high: u64) -> u64 {
        let half = self.warm_up / 2;
        let above = |stored: u64| u128::from(stored.saturating_sub(half));
        let squares = above(high).pow(2) - above(low).pow(2);
        let surcharge = (2 * squares).div_ceil(u128::from(self.warm_up));
        u64::try_from(surcharge).unwrap_or(u64::MAX)
    }

    /// The stored time at `at`.
    fn stored(&self, heat: &Heat, at: u64) -> u64 {
        let idle = self.parts(at).saturating_sub(heat.free) / u128::from(self.requests);
        let idle = u64::try_from(idle).unwrap_or(u64::MAX);
        heat.stored.saturating_add(idle).min(self.warm_up)
    }

    /// Where a call at `at` begins to count. Rounding up to a whole nanosecond is not a pause.
    fn base(&self, heat: &Heat, at: u64) -> u128 {
        let at = self.parts(at);
        let is_pause = at >= heat.free.saturating_add(u128::from(self.requests));
        if is_pause { at } else { heat.free }
    }
}

impl Method for WarmUp {
    type Amount = Heat;

    fn fresh(&self) -> Heat {
        Heat {
            free: 0,
            stored: self.warm_up,
        }
    }

    /// How long a limiter takes to get cold again.
    fn reach(&self) -> u64 {
        let interval = self.nanos.div_ceil(self.requests);
        self.warm_up.saturating_mul(2).saturating_add(interval)
    }

    fn is_same(&self, one: &Heat, other: &Heat, at: u64) -> bool {
        let as_at = |heat| (self.base(heat, at), self.stored(heat, at));
        as_at(one) == as_at(other)
    }

    fn earliest(&self, heat: &Heat, _requests: u64, from: u64) -> u64 {
        let wait = heat.free.saturating_sub(self.parts(from));
        let wait = wait.div_ceil(u128::from(self.requests));
        from.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    fn force(&self, heat: &mut Heat, requests: u64, at: u64) {
        let stored = self.stored(heat, at);
        let base = self.base(heat, at);
        let interval = u128::from(self.nanos) * u128::from(requests);
        let used = interval.div_ceil(u128::from(self.requests));
        let used = u64::try_from(used).unwrap_or(u64::MAX).min(stored);
        heat.stored = stored - used;
        let surcharge = self.parts(self.surcharge(heat.stored, stored));
        heat.free = base.saturating_add(interval).saturating_add(surcharge);
    }

    /// Counts calls told of as made at `at`: one follows the latest that was given out at worst.
    fn tell(&self, heat: &mut Heat, _requests: u64, at: u64, latest: u64) {
        let latest = self.parts(latest) + u128::from(self.nanos);
        if heat.free < latest {
            self.force(heat, 1, at);
        }
    }

    /// What was stored is not known any more: it is given back as time.
    fn give_back(&self, heat: &mut Heat, requests: u64, _at: u64) {
        let interval = u128::from(self.nanos) * u128::from(requests);
        heat.free = heat.free.saturating_sub(interval);
    }

    fn is_idle(&self, heat: &Heat, now: u64) -> bool {
        heat.free <= self.parts(now) && self.stored(heat, now) == self.warm_up
    }

    fn used(&self, heat: &Heat, now: u64) -> u64 {
        let debt = heat.free.saturating_sub(self.parts(now));
        u64::try_from(debt.div_ceil(u128::from(self.nanos))).unwrap_or(u64::MAX)
    }
}
