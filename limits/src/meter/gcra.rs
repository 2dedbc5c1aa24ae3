//! GCRA: a token bucket with continuous refill, stored as one number, the *theoretical arrival time* (TAT).
//!
//! A rate of `r` requests in `p` nanoseconds has an emission interval of `p/r`, which is rarely whole. The TAT is therefore counted in
//! units of 1/r ns, in which the interval is `p` and nothing is rounded. The earliest slot for `n` requests is
//! `at = max(from, TAT + p·(n-1) - p·(burst-1))`, and taking it sets `TAT = max(TAT, at) + p·n`. Only the slot is rounded up to a whole
//! nanosecond. The error does not accumulate, because the next slot follows from the TAT.

use serde::{Deserialize, Serialize};

use super::{CarryOver, MeterKind};
use crate::rate::Rate;

#[derive(Debug, Clone)]
pub(crate) struct Gcra {
    /// Units per nanosecond: the requests of the rate.
    requests: u64,
    /// Emission interval in units: the nanoseconds of the rate.
    nanos: u64,
    /// Burst tolerance in units.
    tolerance: u128,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct GcraState {
    /// Theoretical arrival time of the next request, in units.
    tat: u128,
    /// Latest slot that was taken under earlier parameters of the limit; 0 if its effect has expired.
    carried: u64,
}

/// Exclusive maximum of the TAT: 2^64 ns at 10^12 units per nanosecond.
const TAT_END: u128 = 1 << 112;

impl Gcra {
    pub(crate) fn new(rate: Rate, burst: u64) -> Self {
        Self {
            requests: rate.requests(),
            nanos: rate.nanos(),
            tolerance: u128::from(rate.nanos()) * u128::from(burst - 1),
        }
    }

    /// The duration of `requests` emission intervals in nanoseconds, rounded down.
    pub(crate) fn nanos_of(&self, requests: u64) -> u64 {
        let units = u128::from(self.nanos) * u128::from(requests);
        u64::try_from(units / u128::from(self.requests)).unwrap_or(u64::MAX)
    }

    #[inline]
    pub(super) fn units(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.requests)
    }

    #[inline]
    pub(super) fn units_of(&self, requests: u64) -> u128 {
        u128::from(self.nanos) * u128::from(requests)
    }

    /// The earliest slot at or after `from` for `requests` requests, given the TAT.
    #[inline]
    pub(super) fn due(&self, tat: u128, requests: u64, from: u64) -> u64 {
        let due = (tat + self.units_of(requests - 1)).saturating_sub(self.tolerance);
        let from_units = self.units(from);
        if due <= from_units {
            return from;
        }
        let wait = due - from_units;
        // Fast path: a wait of a few seconds takes one 64-bit division.
        let nanos = match u64::try_from(wait) {
            Ok(wait) => wait.div_ceil(self.requests),
            Err(_) => {
                let nanos = wait.div_ceil(u128::from(self.requests));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        };
        from.saturating_add(nanos)
    }

    /// The larger of TAT and `at`, in units. A slot that was rounded up to a whole nanosecond does not advance the TAT.
    #[inline]
    pub(super) fn base(&self, tat: u128, at: u64) -> u128 {
        let at = self.units(at);
        let is_pause = at >= tat.saturating_add(u128::from(self.requests));
        if is_pause { at } else { tat }
    }

    /// Clears `carried` once the slots under earlier parameters have no effect any more.
    #[inline]
    pub(crate) fn expire(&self, state: &mut GcraState, now: u64) {
        if state.carried > 0 && self.is_idle(state, now) {
            state.carried = 0;
        }
    }

    /// Cancels all future slots, for `requests` requests in total. Past calls have at most emptied the bucket.
    pub(crate) fn cancel(&self, state: &mut GcraState, requests: u64, now: u64) {
        let interval = u128::from(self.nanos);
        let now_units = self.units(now);
        let rest = state.tat.saturating_sub(self.units_of(requests));
        state.tat = if state.carried == 0 {
            rest.min(now_units + self.tolerance + interval)
        } else {
            // Some slots were taken under another rate or burst, so the exact TAT is unknown. Keep at least one interval.
            rest.max(state.tat.min(now_units + interval))
        };
    }

    /// Converts a state of `from` whose latest slot is `last`.
    pub(crate) fn carried_over(
        &self,
        from: &Self,
        old: &GcraState,
        last: u64,
        carry: CarryOver,
        now: u64,
    ) -> GcraState {
        let debt = self.carried_debt(from, old.tat.saturating_sub(from.units(now)), carry);
        let tat = match debt {
            0 => 0,
            debt => self.units(now).saturating_add(debt),
        };
        GcraState {
            tat,
            carried: last.max(old.carried),
        }
    }

    /// How far the TAT is ahead of `now` after the change, in new units.
    fn carried_debt(&self, from: &Self, debt: u128, carry: CarryOver) -> u128 {
        let in_new = |units| scaled(units, self.nanos, from.nanos);
        match carry {
            CarryOver::Reset => 0,
            CarryOver::Usage => in_new(debt),
            CarryOver::Remaining => {
                let [old_max, new_max] = [from, self].map(|it| it.tolerance + u128::from(it.nanos));
                if debt <= old_max {
                    new_max.saturating_sub(in_new(old_max - debt))
                } else {
                    new_max + in_new(debt - old_max)
                }
            }
        }
    }
}

impl MeterKind for Gcra {
    type State = GcraState;

    fn fresh(&self) -> Self::State {
        GcraState::default()
    }

    fn is_valid(&self, state: &Self::State) -> bool {
        state.tat < TAT_END
    }

    /// Time to refill an empty bucket.
    fn lookback(&self) -> u64 {
        let units = self.tolerance + u128::from(self.nanos);
        u64::try_from(units.div_ceil(u128::from(self.requests))).unwrap_or(u64::MAX)
    }

    #[inline]
    fn earliest(&self, state: &Self::State, requests: u64, from: u64) -> u64 {
        self.due(state.tat, requests, from)
    }

    #[inline]
    fn charge(&self, state: &mut Self::State, requests: u64, at: u64) {
        let base = self.base(state.tat, at);
        state.tat = base.saturating_add(self.units_of(requests));
    }

    fn charge_reported(&self, state: &mut Self::State, requests: u64, at: u64, latest: u64) {
        let empty = self.units(latest) + self.tolerance + u128::from(self.nanos);
        let tat = state.tat;
        self.charge(state, requests, at);
        state.tat = state.tat.min(empty).max(tat);
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        self.base(one.tat, at) == self.base(other.tat, at)
    }

    fn is_idle(&self, state: &Self::State, now: u64) -> bool {
        state.tat <= self.units(now)
    }

    fn used(&self, state: &Self::State, now: u64) -> u64 {
        let debt = state.tat.saturating_sub(self.units(now));
        let requests = debt.div_ceil(u128::from(self.nanos));
        u64::try_from(requests).unwrap_or(u64::MAX)
    }
}

/// `units · to / from`, rounded up.
fn scaled(units: u128, to: u64, from: u64) -> u128 {
    let (to, from) = (u128::from(to), u128::from(from));
    (units / from).saturating_mul(to) + (units % from * to).div_ceil(from)
}
