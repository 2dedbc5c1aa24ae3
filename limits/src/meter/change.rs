//! How a state follows when its limit gets other numbers, and when calls that wait are planned anew.

use super::{Amount, KeyState, Kind, Meter, Method as _, Used};

/// How a state follows its limit when that gets other numbers.
///
/// Of token buckets and leaky buckets each does as it says. Windows of the same length keep what they counted, and whatever
/// changes its kind or its window takes over how many requests are used at that moment; these only tell
/// [`Reset`](Self::Reset) from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CarryOver {
    /// What was used stays used, counted in requests: who is ten requests ahead of the old rate is ten ahead of the new.
    #[default]
    Usage,
    /// All begin anew.
    Reset,
    /// What is left stays left, up to the new burst: who may send three at once still may.
    Remaining,
}

impl Meter {
    /// Forgets what is to go after `now`: these calls, from the last to the first. What is not known any more counts as used.
    pub(crate) fn reopen(
        &self,
        state: &mut KeyState,
        calls: impl Iterator<Item = (u64, u64)>,
        now: u64,
    ) {
        self.pass(state, now);
        let mut known = u64::MAX;
        if let Some(booked) = state.booked.take() {
            state.used = booked.before;
            known = state.used.last;
        }
        state.used.last = state.used.last.min(now);
        let calls = calls.filter(|(at, _)| *at <= known);
        if let (Kind::Gcra(meter), Amount::Gcra(pace)) = (&self.kind, &mut state.used.amount) {
            let all = calls.map(|(_, requests)| requests);
            return meter.reopen(pace, all.fold(0, u64::saturating_add), now);
        }
        for (at, requests) in calls {
            let amount = &mut state.used.amount;
            fitting!((self.kind), (amount), (meter; inner) => meter.give_back(inner, requests, at));
        }
    }

    /// The state that `old` becomes when its limit changes from `from` to this at `now`.
    pub(crate) fn carried(
        &self,
        from: &Self,
        old: &KeyState,
        carry: CarryOver,
        now: u64,
    ) -> KeyState {
        let carried = |used: &Used| self.carried_used(from, used, carry, now);
        let mut state = KeyState::from(carried(&old.used));
        if let Some(booked) = old.booked.as_deref().filter(|_| carry != CarryOver::Reset) {
            self.carry_bookings(booked, &mut state, carried);
        }
        state
    }

    fn carried_used(&self, from: &Self, old: &Used, carry: CarryOver, now: u64) -> Used {
        if carry == CarryOver::Reset {
            return self.fresh_used();
        }
        let mut used = old.clone();
        if let (Kind::Gcra(from), Kind::Gcra(to), Amount::Gcra(pace)) =
            (&from.kind, &self.kind, &mut used.amount)
        {
            *pace = to.carried(from, pace, old.last, carry, now);
            return used;
        }
        let amount = &mut used.amount;
        if fitting!((self.kind, from.kind), (amount), (to, from; inner) => to.takes_over(from, inner), false)
        {
            return used;
        }
        let mut state = self.fresh();
        self.force(&mut state, from.amount_used(&old.amount, now), now);
        state.used
    }
}
