//! How a state follows when its limit gets other numbers, and when calls that wait are planned anew.

use super::{Amount, Kind, Meter, State, Used};

/// How a state follows its limit when that gets other numbers.
///
/// Of token buckets and leaky buckets each does as it says. Windows of the same length keep what they counted, and whatever
/// changes its kind or its window takes over how many requests are used at that moment; these only tell
/// [`Reset`](Self::Reset) from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carry {
    /// What was used stays used, counted in requests: who is ten requests ahead of the old rate is ten ahead of the new.
    #[default]
    Requests,
    /// All begin anew.
    Reset,
    /// What is left stays left, up to the new burst: who may send three at once still may.
    AsIs,
}

impl Meter {
    /// Forgets what is to go after `now`: these calls, from the last to the first. What is not known any more counts as used.
    pub(crate) fn reopen(
        &self,
        state: &mut State,
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
            self.give_back(&mut state.used.amount, requests, at);
        }
    }

    /// Gives back what was taken at `at`, as far as it is known how it was before.
    fn give_back(&self, amount: &mut Amount, requests: u64, at: u64) {
        match (&self.kind, amount) {
            (Kind::Stepped(meter), Amount::Stepped(tokens)) => {
                meter.give_back(tokens, requests, at);
            }
            (Kind::Fixed(meter), Amount::Fixed(window)) if meter.can_give_back(window, at) => {
                meter.give_back(window, requests, at);
            }
            (Kind::Counter(meter), Amount::Counter(counts)) if meter.can_give_back(counts, at) => {
                meter.give_back(counts, requests, at);
            }
            (Kind::WarmUp(meter), Amount::WarmUp(heat)) => meter.give_back(heat, requests),
            (Kind::Log(meter), Amount::Log(logged)) => meter.give_back(logged, requests, at),
            (Kind::Steps(meter), Amount::Steps(counted)) => meter.give_back(counted, requests, at),
            _ => {}
        }
    }

    /// The state that `old` becomes when its limit changes from `from` to this at `now`.
    pub(crate) fn carried(&self, from: &Self, old: &State, carry: Carry, now: u64) -> State {
        let carried = |used: &Used| self.carried_used(from, used, carry, now);
        let mut state = State::from(carried(&old.used));
        if let Some(booked) = old.booked.as_deref().filter(|_| carry != Carry::Reset) {
            self.carry_bookings(booked, &mut state, carried);
        }
        state
    }

    fn carried_used(&self, from: &Self, old: &Used, carry: Carry, now: u64) -> Used {
        let amount = match (&from.kind, &self.kind, &old.amount) {
            _ if carry == Carry::Reset => return self.fresh_used(),
            (Kind::Gcra(from), Kind::Gcra(to), Amount::Gcra(pace)) => {
                Amount::Gcra(to.carried(from, pace, old.last, carry, now))
            }
            (Kind::Log(from), Kind::Log(to), Amount::Log(logged)) if from.has_windows_of(to) => {
                Amount::Log(Box::new(to.resized(logged)))
            }
            (from, to, amount) if from.has_windows_of(to) => amount.clone(),
            _ => {
                let mut state = self.fresh();
                let used = from.amount_used(&old.amount, now);
                self.force(&mut state, used, now);
                return state.used;
            }
        };
        Used {
            amount,
            last: old.last,
        }
    }
}

impl Kind {
    /// Whether what was counted in the windows of one is what was counted in those of the other.
    fn has_windows_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fixed(one), Self::Fixed(other)) => one.has_windows_of(other),
            (Self::Counter(one), Self::Counter(other)) => one.has_windows_of(other),
            (Self::Steps(one), Self::Steps(other)) => one.has_windows_of(other),
            _ => false,
        }
    }
}
