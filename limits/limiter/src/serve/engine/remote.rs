//! Decisions by the server of `[sharing]`: the request for a call, and the effect of the decision on this limiter.
//!
//! The server counts the calls and uses its own clock. The engine keeps the names of limits, feedback restrictions, statistics and the
//! usage last reported by the server. While the server is unavailable, calls are refused.

use std::{sync::Arc, time::Duration};

use limits::Demand;
use limits_sharing::exact::{ExactDecision, ExactRule, Operation, Outcome, RuleRequest};

use super::{
    CallError, Engine, EngineState, FEEDBACK, Slot, Target, calls::ResolvedCall, catalog::CHECKED,
    recent_usage::LastUsage,
};

/// A call on which the server has yet to decide.
pub struct PendingDecision {
    call: ResolvedCall,
    /// Version of the limits for which the call was resolved.
    version: u64,
    /// Whether a peek counts as a delay query.
    is_counted: bool,
    token: Option<Arc<str>>,
    /// The latest slot that the call may get. Until the decision, slots of global limits are booked at this time.
    booked_at: Option<u64>,
    /// Ends of the feedback restrictions from which requests are subtracted until the decision.
    restrictions: Vec<u64>,
    /// The operation.
    pub operation: Operation,
    /// The demand on each rule.
    pub rule_requests: Vec<RuleRequest>,
    /// Time during which the call may not proceed because of feedback, regardless of the server's decision.
    pub pause: Duration,
}

impl Engine {
    /// Prepares a call for the server. With a `token`, slots of global limits are booked as in
    /// [`reserve`](Self::reserve).
    ///
    /// # Errors
    /// When the call is rejected without the server.
    pub fn begin_decision(
        &self,
        token: Option<&str>,
        targets: &[Target],
        requests: u64,
        operation: Operation,
        is_counted: bool,
        now: u64,
    ) -> Result<PendingDecision, CallError> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.resolve(targets, requests, now)?;
        let operation = match (operation, token) {
            (Operation::Reserve { max_wait }, Some(token)) => Operation::Reserve {
                max_wait: state.max_wait(token, requests, max_wait, now),
            },
            _ => operation,
        };
        // Reported calls are followed by a query for one more.
        let next = match operation {
            Operation::Count { .. } => requests.saturating_add(1),
            _ => requests,
        };
        let from = state.feedback.earliest(&call.counters, next, now);
        let (booked_at, restrictions) = match operation {
            Operation::Reserve { max_wait } => state.hold(&call, token, max_wait, from, now),
            Operation::Peek | Operation::Count { .. } => Default::default(),
        };
        let rule_requests = call.demands.iter().map(|it| state.rule_request(it));
        let rule_requests = rule_requests.collect();
        Ok(PendingDecision {
            call,
            version: state.version,
            is_counted,
            token: token.map(Arc::from),
            booked_at,
            restrictions,
            operation,
            rule_requests,
            pause: Duration::from_nanos(from.saturating_sub(now)),
        })
    }

    /// Applies the server's decision, received at `now`. Returns the slot of the call, and whether the call was granted
    /// or counted. For reported calls, the slot is that of the next call.
    ///
    /// # Errors
    /// When the server refused the call.
    pub fn finish_decision(
        &self,
        pending: &PendingDecision,
        decision: &ExactDecision,
        now: u64,
    ) -> Result<(Slot, bool), CallError> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        // After a change of the limits, the ids in the call are no longer valid.
        if state.version == pending.version {
            state.release_provisional(pending, true);
            state.apply_decision(pending, decision, now);
        }
        let requests = &pending.rule_requests;
        let request = decision.binding.and_then(|index| requests.get(index));
        let slot = Slot {
            at: decision.at.saturating_mul(1_000),
            now: decision.now.saturating_mul(1_000),
            binding: match request {
                None => (decision.at > decision.now).then(|| Arc::from(FEEDBACK)),
                Some(request) => Some(Arc::clone(&request.name)),
            },
        };
        match decision.outcome {
            Outcome::Now | Outcome::At | Outcome::Counted => Ok((slot, true)),
            Outcome::TooOld => Ok((slot, false)),
            Outcome::OverMaxWait => Err(CallError::OverMaxWait(slot)),
            Outcome::TooEarly => Err(CallError::TooEarly),
            Outcome::TooMany => Err(CallError::OverBurst {
                binding: slot.binding,
                max_burst: request.map_or(0, |it| it.rule.max_burst()),
            }),
        }
    }

    /// Ends a call without a decision. If the request `was_sent`, the server may have granted slots, so they stay booked
    /// until they expire.
    pub fn abandon_decision(&self, pending: &PendingDecision, was_sent: bool) {
        let mut state = self.state();
        if state.version == pending.version {
            state.release_provisional(pending, !was_sent);
        }
    }
}

impl EngineState {
    /// Holds capacity until the decision, so that concurrent calls do not use the same capacity.
    fn hold(
        &mut self,
        call: &ResolvedCall,
        token: Option<&str>,
        max_wait: Duration,
        from: u64,
        now: u64,
    ) -> (Option<u64>, Vec<u64>) {
        let feedback = &mut self.feedback;
        let restrictions = feedback.hold(&call.counters, call.requests, now.max(from));
        let token = token.filter(|_| !max_wait.is_zero());
        let booked_at = token.map(|token| {
            let max_wait = u64::try_from(max_wait.as_nanos()).unwrap_or(u64::MAX);
            let at = now.saturating_add(max_wait);
            self.book(token, call.requests, at);
            at
        });
        (booked_at, restrictions)
    }

    fn release_provisional(&mut self, pending: &PendingDecision, with_slots: bool) {
        let (call, restrictions) = (&pending.call, &pending.restrictions);
        self.feedback
            .release(&call.counters, call.requests, restrictions);
        let booked_at = pending.booked_at.filter(|_| with_slots);
        if let (Some(token), Some(at)) = (&pending.token, booked_at) {
            self.bookings.release(token, call.requests, at);
        }
    }

    fn rule_request(&self, demand: &Demand<Arc<str>>) -> RuleRequest {
        let (_, rule) = self.catalog.owner(demand.limit).expect("an active rule");
        RuleRequest {
            name: Arc::clone(&rule.binding),
            rule: ExactRule::new(&rule.rule.limit).expect(CHECKED),
            key: Arc::clone(&demand.key),
            requests: demand.requests,
        }
    }

    fn apply_decision(&mut self, pending: &PendingDecision, decision: &ExactDecision, now: u64) {
        let (call, operation) = (&pending.call, &pending.operation);
        // Converts a time of the server's clock to the engine's.
        let local = |micros: u64| {
            let wait = micros.saturating_sub(decision.now).saturating_mul(1_000);
            now.saturating_add(wait)
        };
        self.count(call, |counts| {
            let count = match (decision.outcome, operation) {
                (_, Operation::Peek) if pending.is_counted => &mut counts.delays,
                (_, Operation::Peek) => return,
                (Outcome::Now, Operation::Reserve { .. }) => &mut counts.now,
                (Outcome::At, Operation::Reserve { .. }) => &mut counts.delayed,
                (_, Operation::Reserve { .. }) => &mut counts.refused,
                (Outcome::Counted, _) => &mut counts.counted,
                (Outcome::TooOld, _) => &mut counts.too_old,
                (Outcome::TooEarly, _) => &mut counts.too_early,
                (_, Operation::Count { .. }) => return,
            };
            *count += 1;
        });
        let sent_at = match (decision.outcome, operation) {
            (Outcome::Now | Outcome::At, Operation::Reserve { .. }) => Some(local(decision.at)),
            (Outcome::Counted, Operation::Count { .. }) => Some(now),
            _ => None,
        };
        if let Some(at) = sent_at {
            self.feedback.consume(&call.counters, call.requests, at);
            if let Some(token) = pending.token.as_deref().filter(|_| at > now) {
                self.book(token, call.requests, at);
            }
        }
        for (demand, left) in call.demands.iter().zip(&decision.remaining) {
            let usage = LastUsage {
                remaining: left.requests,
                more_at: local(left.more_at),
                free_at: local(left.free_at),
                observed_at: now,
            };
            self.recent_usage.insert(demand.limit, &demand.key, usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use limits::rules::Rules;

    use super::{
        super::{Feedback, Options},
        *,
    };

    const START: u64 = 1_700_000_000 * 1_000_000_000;
    const HOUR: Duration = Duration::from_secs(3_600);

    fn target() -> Target {
        Target {
            limit: "a".to_owned(),
            counter: "k".to_owned(),
        }
    }

    fn engine() -> Engine {
        let text = "
            [limits.a]
            rules = [{ id = 'r', rate = '1000/s' }]
            [limits.whole]
            global = true
            rules = [{ id = 'all', rate = '10/s' }]
        ";
        let options = Options {
            counters_max: 100,
            counters_bytes_max: usize::MAX,
            counted_by_server: true,
        };
        Engine::new(options, &Rules::parse(text).unwrap().limits)
    }

    fn reserve(engine: &Engine) -> PendingDecision {
        let operation = Operation::Reserve { max_wait: HOUR };
        engine
            .begin_decision(Some("one"), &[target()], 1, operation, true, START)
            .unwrap_or_else(|error| panic!("{error:?}"))
    }

    fn decision(outcome: Outcome, wait: u64) -> ExactDecision {
        ExactDecision {
            outcome,
            at: START / 1_000 + wait,
            now: START / 1_000,
            binding: None,
            retry_after: wait,
            remaining: Vec::new(),
        }
    }

    fn max_wait(pending: &PendingDecision) -> Duration {
        match pending.operation {
            Operation::Reserve { max_wait } => max_wait,
            _ => panic!("not a reservation"),
        }
    }

    #[test]
    fn concurrent_calls_of_a_token_leave_half_of_the_slots_to_others() {
        let engine = engine();
        // 300 slots in 30 s.
        let pending: Vec<PendingDecision> = (0..256).map(|_| reserve(&engine)).collect();
        let booked = pending.iter().filter(|it| !max_wait(it).is_zero());
        assert_eq!(booked.count(), 150);
        // An immediate call releases its booking; a delayed call moves its booking to its slot.
        for (pending, wait) in pending.iter().zip([0, 0, 100_000]) {
            let outcome = if wait == 0 { Outcome::Now } else { Outcome::At };
            engine
                .finish_decision(pending, &decision(outcome, wait), START)
                .unwrap();
        }
        assert!(!max_wait(&reserve(&engine)).is_zero());
        assert!(!max_wait(&reserve(&engine)).is_zero());
        assert!(max_wait(&reserve(&engine)).is_zero());
        // Without a decision, the booking stays only if the request was sent.
        engine.abandon_decision(&pending[3], true);
        assert!(max_wait(&reserve(&engine)).is_zero());
        engine.abandon_decision(&pending[4], false);
        assert!(!max_wait(&reserve(&engine)).is_zero());
        assert!(max_wait(&reserve(&engine)).is_zero());
    }

    #[test]
    fn concurrent_calls_do_not_exceed_a_feedback_restriction() {
        let engine = engine();
        let feedback = Feedback {
            status: 200,
            windows: vec![(1, HOUR)],
        };
        assert!(engine.apply_feedback(&target(), &feedback, START).unwrap());
        let first = reserve(&engine);
        assert_eq!(
            (first.pause, reserve(&engine).pause),
            (Duration::ZERO, HOUR)
        );
        // A refused call leaves the request to the next one.
        let refused = engine.finish_decision(&first, &decision(Outcome::OverMaxWait, 100), START);
        assert!(matches!(refused, Err(CallError::OverMaxWait(_))));
        let second = reserve(&engine);
        engine.abandon_decision(&second, true);
        let third = reserve(&engine);
        assert_eq!(
            (second.pause, third.pause),
            (Duration::ZERO, Duration::ZERO)
        );
        engine
            .finish_decision(&third, &decision(Outcome::Now, 0), START)
            .unwrap();
        assert_eq!(reserve(&engine).pause, HOUR);
    }
}
