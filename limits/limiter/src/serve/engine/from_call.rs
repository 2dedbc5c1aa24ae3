//! Limits whose rule each call says, in the words of the article that they are for: at most `requests` in an `interval` of so many seconds,
//! by a step window.
//!
//! For each rule that a call says there is a limit of its own, which has the name of the limit in the file, a space and the rule. No other
//! limit has such a name, as it has a slash. A counter keeps its first rule for as long as it is in use.

use std::{sync::Arc, time::Duration};

use limits::{
    Algorithm, default_step,
    rate::REQUESTS_MAX,
    rules::{NamedLimit, Rule},
};

use super::{Refused, State, Target, catalog::Named};

/// Maximum number of rules that calls of one limit may say.
const RULES_MAX: usize = 64;

/// How long the limit of a rule stays at least, in nanoseconds: a caller of ever new rules must not make all limits anew with each call.
const KEPT_NANOS: u64 = 600 * 1_000_000_000;

/// Counters that are looked at at once, for those that are idle.
const IDLE_LOOKED_AT: usize = 4_096;

/// The longest interval, in seconds: 31 days.
const INTERVAL_MAX: u64 = 31 * 86_400;

/// The rule that a call says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRule {
    interval: u64,
    requests: u64,
}

impl CallRule {
    /// At most `requests` in each interval of so many seconds.
    ///
    /// # Errors
    /// When a number is out of its bounds.
    pub fn new(interval: u64, requests: u64) -> Result<Self, String> {
        if !(1..=INTERVAL_MAX).contains(&interval) {
            return Err(format!(
                "invalid interval {interval}: use 1 to {INTERVAL_MAX} s"
            ));
        }
        if !(1..=REQUESTS_MAX).contains(&requests) {
            return Err(format!(
                "invalid requests {requests}: use 1 to {REQUESTS_MAX}"
            ));
        }
        Ok(Self { interval, requests })
    }

    /// The name of the limit of this rule.
    #[must_use]
    pub fn limit_of(self, base: &str) -> String {
        format!("{base} {}/{}s", self.requests, self.interval)
    }

    /// The limit of this rule. Its numbers are within the bounds of every step window.
    fn limit(self, base: &NamedLimit) -> NamedLimit {
        let window = Duration::from_secs(self.interval);
        let algorithm = Algorithm::StepWindow {
            limit: self.requests,
            window,
            step: default_step(window),
        };
        let rule = Rule {
            id: "of-call".to_owned(),
            limit: algorithm.into(),
        };
        NamedLimit {
            name: self.limit_of(&base.name),
            rules: vec![rule],
            from_call: false,
            ..base.clone()
        }
    }
}

/// The limit of a rule that a call said.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) limit: NamedLimit,
    at: u64,
}

/// The limit in the file, and the rule, that a limit is made of.
fn parts(name: &str) -> Option<(&str, CallRule)> {
    let (base, rule) = name.rsplit_once(' ')?;
    let (requests, interval) = rule.strip_suffix('s')?.split_once('/')?;
    let rule = CallRule::new(interval.parse().ok()?, requests.parse().ok()?);
    Some((base, rule.ok()?))
}

/// The rule of a limit that is made of this one.
fn rule_of<'a>(made: &'a Made, base: &str) -> Option<&'a str> {
    let rule = made.limit.name.strip_prefix(base)?.strip_prefix(' ')?;
    (!rule.contains(' ')).then_some(rule)
}

/// Whether a limit is of one of these whose rule calls say.
pub(super) fn is_of(limits: &[NamedLimit], made: &Made) -> bool {
    let mut limits = limits.iter();
    limits.any(|limit| limit.from_call && rule_of(made, &limit.name).is_some())
}

impl State {
    /// Makes the limit that a call names by [`CallRule::limit_of`], unless it is there.
    ///
    /// # Errors
    /// When the call cannot be under that rule.
    pub(super) fn take_rule(&mut self, target: Target<'_>, now: u64) -> Result<(), Refused> {
        let Some((base, rule)) = parts(target.limit) else {
            return Ok(());
        };
        if !self.is_from_call(base) {
            return Err(match self.catalog.get(base) {
                Some(_) => Refused::RuleOfCall(format!(
                    "{base:?} has its rules already: leave out interval and requests"
                )),
                None => Refused::UnknownLimit(base.to_owned()),
            });
        }
        let counter: Arc<str> = Arc::from(target.counter);
        for made in &self.of_calls {
            if let Some(rule) = rule_of(made, base)
                && made.limit.name != target.limit
                && self.is_in_use(&made.limit.name, &counter, now)
            {
                return Err(Refused::RuleOfCall(format!(
                    "counter {base}/{counter} is in use under rule {rule}; a different rule is accepted once that usage has expired"
                )));
            }
        }
        if self.catalog.get(target.limit).is_some() {
            return Ok(());
        }
        if !self.has_room(base) {
            self.drop_unused(base, now);
        }
        if !self.has_room(base) {
            return Err(Refused::RuleOfCall(format!(
                "{base:?} has {RULES_MAX} different rules in use or called within the last ten minutes: call by one of these, or later"
            )));
        }
        self.make(base, rule, now);
        self.apply(now);
        Ok(())
    }

    /// Whether something of a counter is used or booked, or a partner's answer still holds for it.
    fn is_in_use(&self, limit: &str, counter: &Arc<str>, now: u64) -> bool {
        self.catalog.get(limit).is_some_and(|limit| {
            let mut rules = limit.rules.iter();
            let of = [(Arc::clone(&limit.name), Arc::clone(counter))];
            rules.any(|it| self.core.is_in_use(it.id, counter, now))
                || self.learned.left(&of, now).is_some()
        })
    }

    /// Whether calls of this limit may say another rule.
    fn has_room(&self, base: &str) -> bool {
        let made = self.of_calls.iter();
        made.filter(|made| rule_of(made, base).is_some()).count() < RULES_MAX
    }

    /// Drops the limits made of this one of which no counter is kept, once those are forgotten that are idle.
    fn drop_unused(&mut self, base: &str, now: u64) {
        self.core.evict_idle(IDLE_LOOKED_AT, now);
        self.learned.pass(now);
        let (core, catalog, learned) = (&self.core, &self.catalog, &self.learned);
        let is_kept = |limit: &Named| {
            let mut rules = limit.rules.iter();
            learned.counters_of(&limit.name) > 0 || rules.any(|it| core.keys_of(it.id) > 0)
        };
        self.of_calls.retain(|made| {
            rule_of(made, base).is_none()
                || now < made.at.saturating_add(KEPT_NANOS)
                || catalog.get(&made.limit.name).is_some_and(is_kept)
        });
    }

    fn make(&mut self, base: &str, rule: CallRule, now: u64) {
        let mut limits = self.limits.iter();
        if let Some(base) = limits.find(|limit| limit.from_call && limit.name == base) {
            let limit = rule.limit(base);
            self.of_calls.push(Made { limit, at: now });
        }
    }

    /// Whether each call says the rule of this limit.
    pub(super) fn is_from_call(&self, name: &str) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|limit| limit.from_call && limit.name == name)
    }

    /// Makes the limit of a record again, if it is one that a call made. It may have been there for long.
    pub(super) fn make_again(&mut self, name: &str) {
        if let Some((base, rule)) = parts(name)
            && self.has_room(base)
            && self.of_calls.iter().all(|made| made.limit.name != name)
        {
            self.make(base, rule, 0);
        }
    }
}
