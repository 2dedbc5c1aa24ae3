//! What can be asked of the engine.

use std::{sync::Arc, time::Duration};

use limits::{Decision, Demand, LimitId, RecordError, RecordOutcome, Refusal};

use super::{Binding, Counter, Counts, Engine, Refused, Said, Slot, State, Target, ahead};

/// A call, with what it concerns looked up.
pub(super) struct Call {
    /// The limits that it names, each with a counter.
    pub(super) of: Vec<Counter>,
    pub(super) demands: Vec<Demand<Arc<str>>>,
    pub(super) requests: u64,
}

impl Engine {
    /// When so many requests could go that are under all of these limits. Takes nothing.
    ///
    /// # Errors
    /// Why they never can, or not now.
    pub fn delay(&self, of: &[Target<'_>], requests: u64, now: u64) -> Result<Slot, Refused> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.call(of, requests, now)?;
        state.count(&call, |counts| counts.asked += 1);
        state.next(&call, now)
    }

    /// Takes the first moment when so many requests may go under all of these limits, if it is within the maximum wait; else takes nothing.
    ///
    /// The bearer of a token (`by`) leaves slots to come of limits of every call to others: they are booked up to
    /// [`GLOBAL_MAX_WAIT`](super::GLOBAL_MAX_WAIT) ahead, and by each token no more than it leaves.
    ///
    /// # Errors
    /// Why they may not.
    pub fn reserve(
        &self,
        by: Option<&str>,
        of: &[Target<'_>],
        requests: u64,
        max_wait: Duration,
        now: u64,
    ) -> Result<Slot, Refused> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.call(of, requests, now)?;
        let max_wait = by.map_or(max_wait, |by| state.max_wait(by, requests, max_wait, now));
        let from = state.learned.from(&call.of, requests, now);
        let core = &mut state.core;
        let (at, rule) = match core.reserve_from(&call.demands, from, now, max_wait) {
            Decision::Now => (now, None),
            Decision::At { at, limit } => (at, Some(limit)),
            Decision::Refused { limit, reason } => {
                state.count(&call, |counts| counts.refused += 1);
                return Err(state.refused(&call, limit, reason, max_wait, now));
            }
        };
        state.learned.take(&call.of, requests, at);
        state.count(&call, |counts| match rule {
            None => counts.now += 1,
            Some(_) => counts.delayed += 1,
        });
        if let Some(by) = by.filter(|_| at > now) {
            state.book(by, requests, at);
        }
        Ok(Slot {
            at,
            now,
            binding: rule.and_then(|rule| state.binding(rule, from == at)),
        })
    }

    /// Counts requests that were made at `at`, or now, without having been asked for here.
    ///
    /// # Errors
    /// Why they are not counted.
    pub fn increment(
        &self,
        of: &[Target<'_>],
        requests: u64,
        at: Option<u64>,
        now: u64,
    ) -> Result<(RecordOutcome, Slot), Refused> {
        let mut state = self.state();
        let state = &mut *state;
        let now = now.max(state.core.clock());
        let call = state.call(of, requests, now)?;
        let at = at.unwrap_or(now);
        let recorded = state.core.record(&call.demands, at, now);
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(RecordError::TooEarly) => {
                state.count(&call, |counts| counts.too_early += 1);
                return Err(Refused::TooEarly);
            }
            Err(RecordError::TableFull) => return Err(Refused::NoRoom),
        };
        match recorded {
            RecordOutcome::Counted => {
                state.learned.take(&call.of, requests, now);
                state.count(&call, |counts| counts.counted += 1);
            }
            RecordOutcome::TooOld => state.count(&call, |counts| counts.too_old += 1),
        }
        let one = Call {
            demands: call.demands.iter().map(one_request).collect(),
            requests: 1,
            of: call.of,
        };
        Ok((recorded, state.next(&one, now)?))
    }

    /// Takes in what a partner's answer said of a counter; returns whether something was learned, and when one request could go.
    ///
    /// # Errors
    /// When there is no such limit.
    pub fn feedback(&self, of: Target<'_>, said: Said, now: u64) -> Result<(bool, Slot), Refused> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let (is_learned, call) = state.hear(of, said, now)?;
        Ok((is_learned, state.next(&call, now)?))
    }

    /// The same without a look at when a request could go.
    ///
    /// # Errors
    /// When there is no such limit.
    pub fn hear(&self, of: Target<'_>, said: Said, now: u64) -> Result<bool, Refused> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        Ok(state.hear(of, said, now)?.0)
    }
}

impl State {
    fn hear(&mut self, of: Target<'_>, said: Said, now: u64) -> Result<(bool, Call), Refused> {
        let call = self.call(&[of], 1, now)?;
        // Nothing is learned of a limit of every call: it has no counters.
        let is_learned = match call.of.first() {
            Some(of) => self.learned.hear(of, said, now),
            None => false,
        };
        self.count(&call, |counts| {
            counts.outbound_429 += u64::from(said.status == 429);
            counts.learned += u64::from(is_learned);
        });
        Ok((is_learned, call))
    }
}

fn one_request(demand: &Demand<Arc<str>>) -> Demand<Arc<str>> {
    Demand {
        key: Arc::clone(&demand.key),
        requests: 1,
        ..*demand
    }
}

impl State {
    pub(super) fn call(
        &mut self,
        of: &[Target<'_>],
        requests: u64,
        now: u64,
    ) -> Result<Call, Refused> {
        if let Some(first) = of.first() {
            self.take_rule(*first, now)?;
        }
        let mut named: Vec<Counter> = Vec::with_capacity(of.len());
        for target in of {
            let unknown = || {
                if self.is_from_call(target.limit) {
                    let what = format!(
                        "{:?} takes interval and requests from each call",
                        target.limit
                    );
                    return Refused::RuleOfCall(what);
                }
                Refused::UnknownLimit(target.limit.to_owned())
            };
            let limit = self.catalog.get(target.limit).ok_or_else(unknown)?;
            // What is of every call is asked in any case, and has one counter.
            if !limit.global
                && !named
                    .iter()
                    .any(|(it, key)| *it == limit.name && **key == *target.counter)
            {
                named.push((Arc::clone(&limit.name), Arc::from(target.counter)));
            }
        }
        let demands = self.catalog.demands(&named, &self.whole, requests);
        Ok(Call {
            demands: demands.ok_or(Refused::TooManyRules)?,
            of: named,
            requests,
        })
    }

    /// So many were booked for a moment to come.
    pub(super) fn book(&mut self, by: &str, requests: u64, at: u64) {
        for limit in self.catalog.global() {
            self.ahead.book(limit, by, requests, at);
        }
    }

    /// So many were not booked for this moment after all.
    pub(super) fn give_back(&mut self, by: &str, requests: u64, at: u64) {
        for limit in self.catalog.global() {
            self.ahead.give_back(limit, by, requests, at);
        }
    }

    /// How far ahead a call of this token may be booked; zero where it has booked its part of a limit of every call.
    pub(super) fn max_wait(
        &mut self,
        by: &str,
        requests: u64,
        max_wait: Duration,
        now: u64,
    ) -> Duration {
        let mut max_wait = max_wait;
        let global = self.catalog.global().iter();
        for limit in global.filter_map(|name| self.catalog.get(name)) {
            max_wait = if self.ahead.may_book(limit, by, requests, now) {
                max_wait.min(ahead::MAX_WAIT)
            } else {
                Duration::ZERO
            };
        }
        max_wait
    }

    fn next(&self, call: &Call, now: u64) -> Result<Slot, Refused> {
        let from = self.learned.from(&call.of, call.requests, now);
        match self.core.peek_from(&call.demands, from, now) {
            Ok((at, rule)) => Ok(Slot {
                at,
                now,
                binding: match rule {
                    Some(rule) => self.binding(rule, false),
                    None => (at > now).then_some(Binding::Learned),
                },
            }),
            Err((rule, why)) => match self.refused(call, rule, why, Duration::ZERO, now) {
                // A queue that is full has room then.
                Refused::OverMaxWait(slot) => Ok(slot),
                refused => Err(refused),
            },
        }
    }

    fn binding(&self, rule: LimitId, is_learned: bool) -> Option<Binding> {
        if is_learned {
            return Some(Binding::Learned);
        }
        let (named, placed) = self.catalog.owner(rule)?;
        Some(Binding::Rule {
            limit: Arc::clone(&named.name),
            rule: Arc::clone(&placed.name),
        })
    }

    /// The answer to a call that cannot go within its maximum wait.
    fn refused(
        &self,
        call: &Call,
        rule: LimitId,
        why: Refusal,
        max_wait: Duration,
        now: u64,
    ) -> Refused {
        match why {
            Refusal::TableFull => Refused::NoRoom,
            Refusal::TooMany { max: most } => Refused::TooMany {
                binding: self.binding(rule, false),
                most,
            },
            Refusal::Wait { retry_after } => {
                let from = self.learned.from(&call.of, call.requests, now);
                // A full queue says when it has room; all else when the call could go.
                let could_go = self.core.peek_from(&call.demands, from, now);
                let wait = u64::try_from(retry_after.as_nanos()).unwrap_or(u64::MAX);
                // A slot within the maximum wait that cannot be remembered yet, since too many are booked ahead of it.
                let could_go = could_go
                    .ok()
                    .filter(|(at, _)| Duration::from_nanos(at.saturating_sub(now)) > max_wait);
                let at = could_go.map_or(now.saturating_add(wait), |(at, _)| at);
                Refused::OverMaxWait(Slot {
                    at,
                    now,
                    binding: self.binding(rule, from == at),
                })
            }
        }
    }

    pub(super) fn count(&mut self, call: &Call, count: impl FnMut(&mut Counts)) {
        self.catalog.count(&call.of, count);
    }
}
