//! Calls that the server of `[sharing]` decides on: what it is asked, and what its answers mean here.
//!
//! The server counts, by its own clock. Here are the names of limits, what partners' answers taught, and what was done; what a server said last
//! of each counter; and, where each replica has a part of every limit for when the server is lost, what was let go of that part.

use std::{sync::Arc, time::Duration};

use limits::Demand;
use limits_sharing::exact::{ExactDecision, ExactRule, Operation, Outcome, RuleRequest};

use super::{
    Binding, Counting, Engine, Refused, Slot, State, Target, calls::Call, counting::CHECKED,
    seen::Standing,
};

/// A call for a server to decide on.
pub struct Asking {
    call: Call,
    /// Of which limits it is.
    version: u64,
    rules: Vec<Binding>,
    /// Whether it counts as asked when a call could go.
    pub is_counted: bool,
    /// Whose token is borne.
    by: Option<Arc<str>>,
    /// What is held of others until there is an answer: many that are asked at once would each find room.
    held: Held,
    /// What is asked.
    pub question: Operation,
    /// What is asked of each rule.
    pub asks: Vec<RuleRequest>,
    /// For how long it must not go, whatever the server says: partners' answers say so.
    pub pause: Duration,
}

/// What a call would take, taken before it is known whether it goes.
#[derive(Debug, Default)]
struct Held {
    /// The moment for which slots of limits of every call are booked: the latest that the call may have.
    booked_at: Option<u64>,
    /// The ends of what was learned.
    lessons: Vec<u64>,
}

impl Engine {
    /// What a server is to be asked about a call, of the bearer of this token where slots may be taken ([`reserve`](Self::reserve)).
    ///
    /// # Errors
    /// Why it is not asked.
    pub fn asking(
        &self,
        by: Option<&str>,
        of: &[Target<'_>],
        requests: u64,
        question: Operation,
        now: u64,
    ) -> Result<Asking, Refused> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        let call = state.call(of, requests, now)?;
        let question = match (question, by) {
            (Operation::Reserve { max_wait }, Some(by)) => Operation::Reserve {
                max_wait: state.max_wait(by, requests, max_wait, now),
            },
            _ => question,
        };
        let next = match question {
            Operation::Count { .. } => requests.saturating_add(1),
            _ => requests,
        };
        let from = state.learned.from(&call.of, next, now);
        let held = match question {
            Operation::Reserve { max_wait } => state.hold(&call, by, max_wait, from, now),
            Operation::Peek | Operation::Count { .. } => Held::default(),
        };
        let asks = call.demands.iter().map(|demand| state.ask(demand));
        let (rules, asks) = asks.unzip();
        Ok(Asking {
            call,
            version: state.version,
            is_counted: true,
            by: by.map(Arc::from),
            held,
            rules,
            question,
            asks,
            pause: Duration::from_nanos(from.saturating_sub(now)),
        })
    }

    /// Takes in what the server said at `now`: the slot of the call, or of the next one after calls that were counted, and whether these have an
    /// effect.
    ///
    /// # Errors
    /// Why the call may not go, or is not counted.
    pub fn answered(
        &self,
        asking: &Asking,
        answer: &ExactDecision,
        now: u64,
    ) -> Result<(Slot, bool), Refused> {
        let mut state = self.state();
        let now = now.max(state.core.clock());
        // Under limits that have changed since, only the answer itself is of use.
        if state.version == asking.version {
            state.let_go(asking, true);
            state.take_in(asking, answer, now);
        }
        let binding = answer.binding.and_then(|place| asking.rules.get(place));
        let slot = Slot {
            at: answer.at.saturating_mul(1_000),
            now: answer.now.saturating_mul(1_000),
            binding: match binding {
                None => (answer.at > answer.now).then_some(Binding::Learned),
                binding => binding.cloned(),
            },
        };
        match answer.outcome {
            Outcome::Now | Outcome::At | Outcome::Counted => Ok((slot, true)),
            Outcome::TooOld => Ok((slot, false)),
            Outcome::OverMaxWait => Err(Refused::OverMaxWait(slot)),
            Outcome::TooEarly => Err(Refused::TooEarly),
            Outcome::TooMany => {
                let ask = answer.binding.and_then(|place| asking.asks.get(place));
                Err(Refused::TooMany {
                    binding: slot.binding,
                    most: ask.map_or(0, |ask| ask.rule.max_burst()),
                })
            }
        }
    }

    /// The server said nothing about a call. Its slots are given back unless it `was_asked`: then it may have given them out, and they stay booked
    /// until they have passed, as those of a call that nobody waits for any more.
    pub fn unanswered(&self, asking: &Asking, was_asked: bool) {
        let mut state = self.state();
        if state.version == asking.version {
            state.let_go(asking, !was_asked);
        }
    }
}

impl State {
    fn hold(
        &mut self,
        call: &Call,
        by: Option<&str>,
        max_wait: Duration,
        from: u64,
        now: u64,
    ) -> Held {
        let lessons = self.learned.hold(&call.of, call.requests, now.max(from));
        let by = by.filter(|_| !max_wait.is_zero());
        let booked_at = by.map(|by| {
            let max_wait = u64::try_from(max_wait.as_nanos()).unwrap_or(u64::MAX);
            let at = now.saturating_add(max_wait);
            self.book(by, call.requests, at);
            at
        });
        Held { booked_at, lessons }
    }

    fn let_go(&mut self, asking: &Asking, with_slots: bool) {
        let Asking { call, held, .. } = asking;
        let lessons = &held.lessons;
        self.learned.let_go(&call.of, call.requests, lessons);
        let booked_at = held.booked_at.filter(|_| with_slots);
        if let (Some(by), Some(at)) = (&asking.by, booked_at) {
            self.give_back(by, call.requests, at);
        }
    }

    /// A rule's name, and what is asked of it.
    fn ask(&self, demand: &Demand<Arc<str>>) -> (Binding, RuleRequest) {
        let (named, placed) = self.catalog.owner(demand.limit).expect("a rule in force");
        let binding = Binding::Rule {
            limit: Arc::clone(&named.name),
            rule: Arc::clone(&placed.name),
        };
        let ask = RuleRequest {
            name: Arc::from(binding.to_string()),
            rule: ExactRule::new(&placed.rule.limit).expect(CHECKED),
            key: Arc::clone(&demand.key),
            requests: demand.requests,
        };
        (binding, ask)
    }

    fn take_in(&mut self, asking: &Asking, answer: &ExactDecision, now: u64) {
        let Asking { call, question, .. } = asking;
        // The server's moments by the clock that goes here.
        let here = |micros: u64| {
            let wait = micros.saturating_sub(answer.now).saturating_mul(1_000);
            now.saturating_add(wait)
        };
        let is_taken = match (answer.outcome, question) {
            (Outcome::Now | Outcome::At, Operation::Reserve { .. }) => {
                let is_now = answer.outcome == Outcome::Now;
                self.count(call, |counts| match is_now {
                    true => counts.now += 1,
                    false => counts.delayed += 1,
                });
                true
            }
            (_, Operation::Peek) => {
                self.count(call, |counts| counts.asked += u64::from(asking.is_counted));
                false
            }
            (Outcome::Counted, _) => {
                self.count(call, |counts| counts.counted += 1);
                true
            }
            (Outcome::TooOld, _) => {
                self.count(call, |counts| counts.too_old += 1);
                false
            }
            (Outcome::TooEarly, _) => {
                self.count(call, |counts| counts.too_early += 1);
                false
            }
            (Outcome::OverMaxWait | Outcome::TooMany, Operation::Reserve { .. }) => {
                self.count(call, |counts| counts.refused += 1);
                false
            }
            _ => false,
        };
        if is_taken {
            let at = match question {
                Operation::Reserve { .. } => here(answer.at),
                _ => now,
            };
            self.learned.take(&call.of, call.requests, at);
            if let Some(by) = asking.by.as_deref().filter(|_| at > now) {
                self.book(by, call.requests, at);
            }
            if let Counting::Part(_) = self.counting {
                // Without room for it the call would not go without the server.
                self.core.record(&call.demands, now, now).ok();
            }
        }
        for (demand, left) in call.demands.iter().zip(&answer.remaining) {
            let standing = Standing {
                requests: left.requests,
                more_at: here(left.more_at),
                free_at: here(left.free_at),
                seen_at: now,
            };
            self.seen.put(demand.limit, &demand.key, standing);
        }
    }
}

#[cfg(test)]
mod tests {
    use limits::rules::Rules;

    use super::{
        super::{Options, Said},
        *,
    };

    const START: u64 = 1_700_000_000 * 1_000_000_000;
    const HOUR: Duration = Duration::from_secs(3_600);

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
            feedback_ttl_max: HOUR,
            counting: Counting::Elsewhere,
            is_saved: false,
        };
        Engine::new(options, &Rules::parse(text).unwrap().limits)
    }

    fn reserve(engine: &Engine) -> Asking {
        let of = [Target {
            limit: "a",
            counter: "k",
        }];
        let question = Operation::Reserve { max_wait: HOUR };
        engine
            .asking(Some("one"), &of, 1, question, START)
            .unwrap_or_else(|why| panic!("{why:?}"))
    }

    fn answer(outcome: Outcome, wait: u64) -> ExactDecision {
        ExactDecision {
            outcome,
            at: START / 1_000 + wait,
            now: START / 1_000,
            binding: None,
            retry_after: wait,
            remaining: Vec::new(),
        }
    }

    fn max_wait(asking: &Asking) -> Duration {
        match asking.question {
            Operation::Reserve { max_wait } => max_wait,
            _ => panic!("it is no reservation"),
        }
    }

    #[test]
    fn calls_that_are_asked_at_once_book_no_more_than_they_leave_to_others() {
        let engine = engine();
        // Of 300 slots in 30 s.
        let asked: Vec<Asking> = (0..256).map(|_| reserve(&engine)).collect();
        let ahead = asked.iter().filter(|it| !max_wait(it).is_zero());
        assert_eq!(ahead.count(), 150);
        // Those that went at once are booked no more, the others for their slots alone.
        for (asking, wait) in asked.iter().zip([0, 0, 100_000]) {
            let outcome = if wait == 0 { Outcome::Now } else { Outcome::At };
            engine
                .answered(asking, &answer(outcome, wait), START)
                .unwrap();
        }
        assert!(!max_wait(&reserve(&engine)).is_zero());
        assert!(!max_wait(&reserve(&engine)).is_zero());
        assert!(max_wait(&reserve(&engine)).is_zero());
        // Those that a server may have counted stay booked, and those that it was not asked do not.
        engine.unanswered(&asked[3], true);
        assert!(max_wait(&reserve(&engine)).is_zero());
        engine.unanswered(&asked[4], false);
        assert!(!max_wait(&reserve(&engine)).is_zero());
        assert!(max_wait(&reserve(&engine)).is_zero());
    }

    #[test]
    fn calls_that_are_asked_at_once_are_no_more_than_a_partner_left() {
        let engine = engine();
        let of = Target {
            limit: "a",
            counter: "k",
        };
        let said = Said {
            status: 200,
            left: Some((1, HOUR)),
            ..Said::default()
        };
        assert!(engine.hear(of, said, START).unwrap());
        let first = reserve(&engine);
        assert_eq!(
            (first.pause, reserve(&engine).pause),
            (Duration::ZERO, HOUR)
        );
        // One that does not go leaves it to another.
        let wait = engine.answered(&first, &answer(Outcome::OverMaxWait, 100), START);
        assert!(matches!(wait, Err(Refused::OverMaxWait(_))));
        let second = reserve(&engine);
        engine.unanswered(&second, true);
        let third = reserve(&engine);
        assert_eq!(
            (second.pause, third.pause),
            (Duration::ZERO, Duration::ZERO)
        );
        engine
            .answered(&third, &answer(Outcome::Now, 0), START)
            .unwrap();
        assert_eq!(reserve(&engine).pause, HOUR);
    }
}
