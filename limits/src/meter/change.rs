//! Changes to a limit's parameters: carries over the usage of keys, and cancels future slots so that their calls can be rescheduled.

use super::{AlgorithmState, KeyState, Kind, Meter, MeterKind as _, Usage};

/// What happens to the usage of keys when the parameters of their limit change.
///
/// Token buckets and leaky buckets support all variants. For other algorithms, `Remaining` is the same as `Usage`: if the window stays,
/// so do the counts; otherwise the number of used requests is charged to a new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CarryOver {
    /// Keep the number of used requests: a key that is ten requests ahead of the old rate is ten requests ahead of the new one.
    #[default]
    Usage,
    /// Reset all usage.
    Reset,
    /// Keep the remaining requests, up to the new burst: a key that may make three more requests still may.
    Remaining,
}

impl Meter {
    /// Cancels the future slots of `calls`: times and requests, last first. If earlier usage is unknown by now, it is overestimated.
    pub(crate) fn cancel(
        &self,
        state: &mut KeyState,
        calls: impl Iterator<Item = (u64, u64)>,
        now: u64,
    ) {
        self.expire(state, now);
        let mut known = u64::MAX;
        if let Some(bookings) = state.bookings.take() {
            state.usage = bookings.before;
            known = state.usage.last;
        }
        let Usage { state, last } = &mut state.usage;
        *last = now.min(*last);
        let calls = calls.filter(|(at, _)| *at <= known);
        if let (Kind::Gcra(meter), AlgorithmState::Gcra(inner)) = (&self.kind, &mut *state) {
            let all = calls.map(|(_, requests)| requests);
            return meter.cancel(inner, all.fold(0, u64::saturating_add), now);
        }
        for (at, requests) in calls {
            dispatch!((self.kind), (&mut *state), (meter; inner) => meter.refund(inner, requests, at));
        }
    }

    /// The state that corresponds to `old` after its limit changes from `from` to this one at `now`.
    pub(crate) fn carried_over(
        &self,
        from: &Self,
        old: &KeyState,
        carry: CarryOver,
        now: u64,
    ) -> KeyState {
        let convert = |usage: &Usage| self.convert(from, usage, carry, now);
        let mut state = KeyState::from(convert(&old.usage));
        let bookings = old.bookings.as_deref();
        if let Some(bookings) = bookings.filter(|_| carry != CarryOver::Reset) {
            self.carry_bookings(bookings, &mut state, convert);
        }
        state
    }

    fn convert(&self, from: &Self, old: &Usage, carry: CarryOver, now: u64) -> Usage {
        if carry == CarryOver::Reset {
            return self.fresh_usage();
        }
        let mut usage = old.clone();
        let state = &mut usage.state;
        if let (Kind::Gcra(from), Kind::Gcra(to), AlgorithmState::Gcra(inner)) =
            (&from.kind, &self.kind, &mut *state)
        {
            *inner = to.carried_over(from, inner, old.last, carry, now);
            return usage;
        }
        if dispatch!((self.kind, from.kind), (state), (to, from; inner) => to.adopts(from, inner), false)
        {
            return usage;
        }
        let mut state = self.fresh();
        self.charge(&mut state, from.used_of(old, now), now);
        state.usage
    }
}
