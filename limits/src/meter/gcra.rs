//! GCRA: a token bucket with continuous refill, in one number, the *theoretical arrival time* (TAT).
//!
//! A rate of `r` requests in `p` nanoseconds has an interval of `p/r`, which is seldom whole. So the TAT is counted in parts
//! of 1/r ns, in which the interval is `p` and nothing is rounded: `at = max(from, TAT + p·(n-1) - p·(burst-1))`, then
//! `TAT = max(TAT, at) + p·n`. Only the moment that is told is rounded up, to a whole nanosecond, and what it was rounded by is not
//! lost: the next follows the TAT, not the moment.

use serde::{Deserialize, Serialize};

use super::{CarryOver, Method};
use crate::rate::Rate;

#[derive(Debug, Clone)]
pub(crate) struct Gcra {
    /// Parts of a nanosecond.
    requests: u64,
    /// The interval between two requests, in those parts.
    nanos: u64,
    /// By how much the TAT may be ahead, in those parts.
    tolerance: u128,
}

/// The state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// When the next would be due if all were evenly spaced, in parts of a nanosecond.
    tat: u128,
    /// What was taken to go at this moment or before was taken before the limit was changed; 0 when all that is forgotten.
    carried: u64,
}

/// Beyond every TAT that there can be: 2^64 ns in parts of 10^12 to the nanosecond.
const TAT_END: u128 = 1 << 112;

impl Gcra {
    pub(crate) fn new(rate: Rate, burst: u64) -> Self {
        Self {
            requests: rate.requests(),
            nanos: rate.nanos(),
            tolerance: u128::from(rate.nanos()) * u128::from(burst - 1),
        }
    }

    /// The time of so many intervals, rounded down.
    pub(crate) fn time_of(&self, requests: u64) -> u64 {
        let parts = u128::from(self.nanos) * u128::from(requests);
        u64::try_from(parts / u128::from(self.requests)).unwrap_or(u64::MAX)
    }

    #[inline]
    fn parts(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.requests)
    }

    #[inline]
    fn parts_of(&self, requests: u64) -> u128 {
        u128::from(self.nanos) * u128::from(requests)
    }

    /// The first moment from `from` on at which a bucket with this TAT has room for so many.
    #[inline]
    fn due(&self, tat: u128, requests: u64, from: u64) -> u64 {
        let due = (tat + self.parts_of(requests - 1)).saturating_sub(self.tolerance);
        let from_parts = self.parts(from);
        if due <= from_parts {
            return from;
        }
        let wait = due - from_parts;
        // A wait of a few seconds is one division of 64 bits.
        let nanos = match u64::try_from(wait) {
            Ok(wait) => wait.div_ceil(self.requests),
            Err(_) => {
                let nanos = wait.div_ceil(u128::from(self.requests));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        };
        from.saturating_add(nanos)
    }

    /// Where a call at `at` begins to count. Rounding up to a whole nanosecond is not a pause.
    #[inline]
    fn base(&self, tat: u128, at: u64) -> u128 {
        let at = self.parts(at);
        let is_pause = at >= tat.saturating_add(u128::from(self.requests));
        if is_pause { at } else { tat }
    }

    #[inline]
    /// Forgets what calls at other prices left, when that is over.
    pub(crate) fn pass(&self, pace: &mut Pace, now: u64) {
        if pace.carried > 0 && self.is_idle(pace, now) {
            pace.carried = 0;
        }
    }

    /// Forgets all that is to go after `now`, which is for so many requests. What has gone has left the bucket empty at worst.
    pub(crate) fn reopen(&self, pace: &mut Pace, requests: u64, now: u64) {
        let interval = u128::from(self.nanos);
        let now_parts = self.parts(now);
        let left = pace.tat.saturating_sub(self.parts_of(requests));
        pace.tat = if pace.carried == 0 {
            left.min(now_parts + self.tolerance + interval)
        } else {
            // Taken at other prices, and with another burst: at least the latest of what has gone is left.
            left.max(pace.tat.min(now_parts + interval))
        };
    }

    /// The state after a change, of which the latest moment was `last`.
    pub(crate) fn carried(
        &self,
        from: &Self,
        old: &Pace,
        last: u64,
        carry: CarryOver,
        now: u64,
    ) -> Pace {
        let debt = self.carried_debt(from, old.tat.saturating_sub(from.parts(now)), carry);
        let tat = match debt {
            0 => 0,
            debt => self.parts(now).saturating_add(debt),
        };
        Pace {
            tat,
            carried: last.max(old.carried),
        }
    }

    /// By how much the TAT is ahead after a change, in parts of the new kind.
    fn carried_debt(&self, from: &Self, debt: u128, carry: CarryOver) -> u128 {
        let in_new = |parts| scaled(parts, self.nanos, from.nanos);
        match carry {
            CarryOver::Reset => 0,
            CarryOver::Usage => in_new(debt),
            CarryOver::Remaining => {
                let [old_most, new_most] =
                    [from, self].map(|it| it.tolerance + u128::from(it.nanos));
                if debt <= old_most {
                    new_most.saturating_sub(in_new(old_most - debt))
                } else {
                    new_most + in_new(debt - old_most)
                }
            }
        }
    }
}

impl Method for Gcra {
    type Amount = Pace;

    fn fresh(&self) -> Pace {
        Pace::default()
    }

    fn fits(&self, pace: &Pace) -> bool {
        pace.tat < TAT_END
    }

    /// How long a burst takes to be paid for.
    fn reach(&self) -> u64 {
        let parts = self.tolerance + u128::from(self.nanos);
        u64::try_from(parts.div_ceil(u128::from(self.requests))).unwrap_or(u64::MAX)
    }

    #[inline]
    fn earliest(&self, pace: &Pace, requests: u64, from: u64) -> u64 {
        self.due(pace.tat, requests, from)
    }

    #[inline]
    fn force(&self, pace: &mut Pace, requests: u64, at: u64) {
        let base = self.base(pace.tat, at);
        pace.tat = base.saturating_add(self.parts_of(requests));
    }

    /// Counts so many as made at `at`. They leave the bucket empty at worst, at `latest`.
    fn tell(&self, pace: &mut Pace, requests: u64, at: u64, latest: u64) {
        let empty = self.parts(latest) + self.tolerance + u128::from(self.nanos);
        let tat = pace.tat;
        self.force(pace, requests, at);
        pace.tat = pace.tat.min(empty).max(tat);
    }

    /// Whether what follows at `at` is the same after both.
    fn is_same(&self, one: &Pace, other: &Pace, at: u64) -> bool {
        self.base(one.tat, at) == self.base(other.tat, at)
    }

    fn is_idle(&self, pace: &Pace, now: u64) -> bool {
        pace.tat <= self.parts(now)
    }

    fn used(&self, pace: &Pace, now: u64) -> u64 {
        let debt = pace.tat.saturating_sub(self.parts(now));
        let requests = debt.div_ceil(u128::from(self.nanos));
        u64::try_from(requests).unwrap_or(u64::MAX)
    }
}

/// `parts · to / from`, rounded up.
fn scaled(parts: u128, to: u64, from: u64) -> u128 {
    let (to, from) = (u128::from(to), u128::from(from));
    (parts / from).saturating_mul(to) + (parts % from * to).div_ceil(from)
}
