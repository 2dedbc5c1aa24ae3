//! Decisions on calls: delay, reserve, increment and feedback.

use std::{slice, sync::Arc, time::Duration};

use limits::{Decision, Demand, LimitId, RecordError, RecordOutcome, Refusal};

use super::{
    CallError, CounterKey, Counts, Engine, EngineState, FEEDBACK, Feedback, Slot, Target, bookings,
};

/// A call with its limits looked up.
pub(super) struct ResolvedCall {
    /// The counters that the call names; those of global limits are not included.
    pub(super) counters: Vec<CounterKey>,
    pub(super) demands: Vec<Demand<Arc<str>>>,
    pub(super) requests: u64,
}

impl Engine {
    /// Returns the earliest time for a call for `requests` under all `targets`. Changes no limits; with `is_counted`,
    /// it increments [`Counts::delays`].
    ///
    /// # Errors
    /// When the call can never proceed, or a limit is unknown.
    pub fn delay(
        &self,
        targets: &[Target],
        requests: u64,
        is_counted: bool,
        now: u64,
    ) -> Result<Slot, CallError> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.resolve(targets, requests, now)?;
        state.count(&call, |counts| counts.delays += u64::from(is_counted));
        state.earliest(&call, now)
    }

    /// Reserves the first slot for `requests` under all `targets` if it is within `max_wait`, or nothing.
    ///
    /// A `token` books slots of global limits up to [`GLOBAL_MAX_WAIT`](super::GLOBAL_MAX_WAIT) ahead, and leaves at
    /// least as many of them to other tokens.
    ///
    /// # Errors
    /// When nothing is reserved.
    pub fn reserve(
        &self,
        token: Option<&str>,
        targets: &[Target],
        requests: u64,
        max_wait: Duration,
        now: u64,
    ) -> Result<Slot, CallError> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.resolve(targets, requests, now)?;
        let max_wait = token.map_or(max_wait, |token| {
            state.max_wait(token, requests, max_wait, now)
        });
        let from = state.feedback.earliest(&call.counters, requests, now);
        let core = &mut state.core;
        let (at, rule) = match core.reserve_from(&call.demands, from, now, max_wait) {
            Decision::Now => (now, None),
            Decision::At { at, limit } => (at, Some(limit)),
            Decision::Refused { limit, reason } => {
                state.count(&call, |counts| counts.refused += 1);
                return Err(state.error(&call, limit, reason, max_wait, now));
            }
        };
        state.feedback.consume(&call.counters, requests, at);
        state.count(&call, |counts| match rule {
            None => counts.now += 1,
            Some(_) => counts.delayed += 1,
        });
        if let Some(token) = token.filter(|_| at > now) {
            state.book(token, requests, at);
        }
        Ok(Slot {
            at,
            now,
            binding: rule.and_then(|rule| state.binding(rule, from == at)),
        })
    }

    /// Counts `requests` that were already made at `at` (default: now), and returns the earliest time for one more.
    ///
    /// # Errors
    /// When nothing is counted.
    pub fn increment(
        &self,
        targets: &[Target],
        requests: u64,
        at: Option<u64>,
        now: u64,
    ) -> Result<(RecordOutcome, Slot), CallError> {
        let mut state = self.state();
        let state = &mut *state;
        let now = now.max(state.core.clock());
        let mut call = state.resolve(targets, requests, now)?;
        let recorded = state
            .core
            .record(&call.demands, at.unwrap_or(now), now)
            .map_err(|error| match error {
                RecordError::TooEarly => {
                    state.count(&call, |counts| counts.too_early += 1);
                    CallError::TooEarly
                }
                RecordError::TableFull => CallError::CounterLimit,
            })?;
        match recorded {
            RecordOutcome::Counted => {
                state.feedback.consume(&call.counters, requests, now);
                state.count(&call, |counts| counts.counted += 1);
            }
            RecordOutcome::TooOld => state.count(&call, |counts| counts.too_old += 1),
        }
        call.requests = 1;
        for demand in &mut call.demands {
            demand.requests = 1;
        }
        Ok((recorded, state.earliest(&call, now)?))
    }

    /// Applies the feedback of a partner to a counter; returns whether it adds a restriction.
    ///
    /// # Errors
    /// When the limit is unknown.
    pub fn apply_feedback(
        &self,
        target: &Target,
        feedback: &Feedback,
        now: u64,
    ) -> Result<bool, CallError> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.resolve(slice::from_ref(target), 1, now)?;
        // Feedback does not apply to global limits, because calls do not name counters of them.
        let is_applied = match call.counters.first() {
            Some(counter) => state.feedback.apply(counter, feedback, now),
            None => false,
        };
        state.count(&call, |counts| {
            counts.outbound_429 += u64::from(feedback.status == 429);
            counts.feedback_applied += u64::from(is_applied);
        });
        Ok(is_applied)
    }
}

impl EngineState {
    pub(super) fn resolve(
        &mut self,
        targets: &[Target],
        requests: u64,
        now: u64,
    ) -> Result<ResolvedCall, CallError> {
        if let Some(first) = targets.first() {
            self.ensure_call_limit(first, now)?;
        }
        let mut counters: Vec<CounterKey> = Vec::with_capacity(targets.len());
        for target in targets {
            let name = &*target.limit;
            let limit = self.catalog.get(name).ok_or_else(|| {
                if self.is_from_call(name) {
                    let why = format!("{name:?} requires `interval` and `requests` in each call");
                    return CallError::InvalidRule(why);
                }
                CallError::UnknownLimit(name.to_owned())
            })?;
            // Global limits apply to every call anyway.
            if !limit.global
                && !counters
                    .iter()
                    .any(|(it, key)| *it == limit.name && **key == *target.counter)
            {
                counters.push((Arc::clone(&limit.name), Arc::from(&*target.counter)));
            }
        }
        let demands = self.catalog.demands(&counters, requests);
        Ok(ResolvedCall {
            demands: demands.ok_or(CallError::TooManyRules)?,
            counters,
            requests,
        })
    }

    /// Books future requests of a token under all global limits.
    pub(super) fn book(&mut self, token: &str, requests: u64, at: u64) {
        if !self.catalog.global.is_empty() {
            self.bookings.book(token, requests, at);
        }
    }

    /// Maximum wait of a token's call; zero if the token has booked its share of a global limit.
    pub(super) fn max_wait(
        &mut self,
        token: &str,
        requests: u64,
        max_wait: Duration,
        now: u64,
    ) -> Duration {
        let mut max_wait = max_wait;
        let global = self.catalog.global.iter();
        for limit in global.filter_map(|name| self.catalog.get(name)) {
            max_wait = if self.bookings.may_book(limit, token, requests, now) {
                max_wait.min(bookings::MAX_WAIT)
            } else {
                Duration::ZERO
            };
        }
        max_wait
    }

    fn earliest(&self, call: &ResolvedCall, now: u64) -> Result<Slot, CallError> {
        let from = self.feedback.earliest(&call.counters, call.requests, now);
        match self.core.peek(&call.demands, from, now) {
            Ok((at, rule)) => Ok(Slot {
                at,
                now,
                binding: match rule {
                    Some(rule) => self.binding(rule, false),
                    None => (at > now).then(|| Arc::from(FEEDBACK)),
                },
            }),
            Err((rule, why)) => match self.error(call, rule, why, Duration::ZERO, now) {
                // The queue of the rule is full until this slot.
                CallError::OverMaxWait(slot) => Ok(slot),
                error => Err(error),
            },
        }
    }

    fn binding(&self, rule: LimitId, is_feedback: bool) -> Option<Arc<str>> {
        if is_feedback {
            return Some(Arc::from(FEEDBACK));
        }
        Some(self.catalog.owner(rule)?.1.binding.clone())
    }

    fn error(
        &self,
        call: &ResolvedCall,
        rule: LimitId,
        why: Refusal,
        max_wait: Duration,
        now: u64,
    ) -> CallError {
        match why {
            Refusal::TableFull => CallError::CounterLimit,
            Refusal::TooMany { max: max_burst } => CallError::OverBurst {
                binding: self.binding(rule, false),
                max_burst,
            },
            Refusal::Wait { retry_after } => {
                let from = self.feedback.earliest(&call.counters, call.requests, now);
                // A slot within the maximum wait is refused if the queue is full, or if the list of slots reserved
                // after it is full. `retry_after` is the time until a retry can succeed.
                let slot = self.core.peek(&call.demands, from, now).ok();
                let slot =
                    slot.filter(|(at, _)| Duration::from_nanos(at.saturating_sub(now)) > max_wait);
                let wait = u64::try_from(retry_after.as_nanos()).unwrap_or(u64::MAX);
                let at = slot.map_or(now.saturating_add(wait), |(at, _)| at);
                CallError::OverMaxWait(Slot {
                    at,
                    now,
                    binding: self.binding(rule, from == at),
                })
            }
        }
    }

    pub(super) fn count(&mut self, call: &ResolvedCall, count: impl FnMut(&mut Counts)) {
        self.catalog.count(&call.counters, count);
    }
}
