//! Limits whose rule each call says, in the words of the article that they are for: at most `requests` in an `interval` of so many seconds,
//! by a step window.
//!
//! For each rule that a call says there is a limit of its own, which has the name of the limit in the file, a space and the rule. No other
//! limit has such a name, as it has a slash. A counter keeps its first rule for as long as something of it is used.

use std::sync::Arc;

use limits::{
    rate::REQUESTS_MAX,
    rules::{NamedLimit, Rules},
};

use super::{Engine, Refused, State};

/// Maximum number of rules that calls of one limit may say.
const RULES_MAX: usize = 64;

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
            return Err(format!("interval: {interval} is not 1 to {INTERVAL_MAX} s"));
        }
        if !(1..=REQUESTS_MAX).contains(&requests) {
            return Err(format!("requests: {requests} is not 1 to {REQUESTS_MAX}"));
        }
        Ok(Self { interval, requests })
    }

    /// The limit of this rule.
    fn limit(self, base: &str) -> Result<NamedLimit, String> {
        let Self { interval, requests } = self;
        let rule = format!("{requests}/{interval}s");
        let text = format!(
            "[limits.of-call]\nrules = [{{ id = 'of-call', rate = '{rule}', algorithm = 'step_window' }}]"
        );
        let rules = Rules::parse(&text).map_err(|mistakes| mistakes.to_string())?;
        let limit = rules.limits.into_iter().next().expect("one was written");
        Ok(NamedLimit {
            name: format!("{base} {rule}"),
            ..limit
        })
    }
}

/// The limit in the file, and the rule, that a limit is made of.
fn parts(name: &str) -> Option<(&str, &str)> {
    let (base, rule) = name.rsplit_once(' ')?;
    rule.contains('/').then_some((base, rule))
}

/// Whether a limit is of one of these whose rule calls say.
pub(super) fn is_of(limits: &[NamedLimit], made: &NamedLimit) -> bool {
    let base = parts(&made.name).map(|(base, _)| base);
    let mut limits = limits.iter();
    limits.any(|limit| limit.from_call && Some(&*limit.name) == base)
}

impl Engine {
    /// The name of the limit that a call is under which says its rule.
    ///
    /// # Errors
    /// When it cannot be under that rule.
    pub fn limit_of_call(
        &self,
        base: &str,
        counter: &str,
        rule: CallRule,
        now: u64,
    ) -> Result<String, Refused> {
        self.state().limit_of_call(base, counter, rule, now)
    }
}

impl State {
    fn limit_of_call(
        &mut self,
        base: &str,
        counter: &str,
        rule: CallRule,
        now: u64,
    ) -> Result<String, Refused> {
        if !self.is_from_call(base) {
            return Err(match self.catalog.place(base) {
                Some(_) => Refused::RuleOfCall(format!(
                    "{base:?} has its rules already: leave out interval and requests"
                )),
                None => Refused::UnknownLimit(base.to_owned()),
            });
        }
        let limit = rule.limit(base).map_err(Refused::RuleOfCall)?;
        let key: Arc<str> = Arc::from(counter);
        let mut rules = 0;
        for made in &self.of_calls {
            let Some((_, rule)) = parts(&made.name).filter(|(it, _)| *it == base) else {
                continue;
            };
            rules += 1;
            let Some(place) = self.catalog.place(&made.name) else {
                continue;
            };
            let mut placed = self.catalog.get(place).rules.iter();
            let core = &self.core;
            let is_used = placed
                .any(|it| core.keeps(it.id, &key) && core.standing(it.id, &key, now).used > 0);
            if is_used && made.name != limit.name {
                return Err(Refused::RuleOfCall(format!(
                    "the counter {base}/{counter} goes by {rule}, the rule of its first call, until nothing of it is used"
                )));
            }
        }
        let name = limit.name.clone();
        if self.catalog.place(&name).is_none() {
            if rules >= RULES_MAX {
                return Err(Refused::RuleOfCall(format!(
                    "{base:?} has {RULES_MAX} different rules of calls, and no room for another"
                )));
            }
            self.of_calls.push(limit);
            self.apply(now);
        }
        Ok(name)
    }

    /// Whether each call says the rule of this limit.
    pub(super) fn is_from_call(&self, name: &str) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|limit| limit.from_call && limit.name == name)
    }

    /// Makes the limit of a snapshot again, if it is one that a call made.
    pub(super) fn make_again(&mut self, name: &str) {
        let numbers = parts(name).and_then(|(base, rule)| {
            let (requests, interval) = rule.strip_suffix('s')?.split_once('/')?;
            Some((base, interval.parse().ok()?, requests.parse().ok()?))
        });
        let Some((base, interval, requests)) = numbers.filter(|it| self.is_from_call(it.0)) else {
            return;
        };
        if let Ok(rule) = CallRule::new(interval, requests)
            && let Ok(limit) = rule.limit(base)
            && self.of_calls.len() < RULES_MAX * self.limits.len()
            && self.of_calls.iter().all(|made| made.name != limit.name)
        {
            self.of_calls.push(limit);
        }
    }
}
