//! Limits with `from_call`, whose calls provide the rule: at most `requests` per `interval` seconds.
//!
//! Each rule becomes a separate limit. Its name is that of the configured limit, a space and the rule. The slash in the
//! rule distinguishes the name from those of configured limits. A counter keeps its first rule while it is in use.

use std::{sync::Arc, time::Duration};

use limits::{
    Algorithm, default_step,
    rate::REQUESTS_MAX,
    rules::{NamedLimit, Rule},
};

use super::{CallError, EngineState, Target, catalog::CatalogLimit};

/// Maximum number of rules per configured limit.
const RULES_MAX: usize = 64;

/// Minimum lifetime of a rule, in nanoseconds. It prevents a client that sends a new rule with each call from
/// rebuilding all limits each time.
const LIFETIME_MIN: u64 = 600 * 1_000_000_000;

/// Counters checked for idleness before unused rules are dropped.
const IDLE_SCAN_MAX: usize = 4_096;

/// Maximum interval in seconds: 31 days.
const INTERVAL_MAX: u64 = 31 * 86_400;

/// A rule provided by a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallRule {
    interval: u64,
    requests: u64,
}

impl CallRule {
    /// Creates a rule of at most `requests` per `interval` seconds.
    ///
    /// # Errors
    /// When a number is out of its range.
    pub fn new(interval: u64, requests: u64) -> Result<Self, String> {
        if !(1..=INTERVAL_MAX).contains(&interval) {
            return Err(format!(
                "`interval` is {interval}: use 1 to {INTERVAL_MAX} (seconds)"
            ));
        }
        if !(1..=REQUESTS_MAX).contains(&requests) {
            return Err(format!("`requests` is {requests}: use 1 to {REQUESTS_MAX}"));
        }
        Ok(Self { interval, requests })
    }

    /// Name of the limit for this rule of the configured limit `base`.
    pub fn limit_name(self, base: &str) -> String {
        format!("{base} {}/{}s", self.requests, self.interval)
    }

    /// The configured limit and the rule of such a name.
    fn parse(name: &str) -> Option<(&str, Self)> {
        let (base, rule) = name.rsplit_once(' ')?;
        let (requests, interval) = rule.strip_suffix('s')?.split_once('/')?;
        let rule = Self::new(interval.parse().ok()?, requests.parse().ok()?);
        Some((base, rule.ok()?))
    }

    /// The limit for this rule, a step window. Every rule is within its bounds.
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
            name: self.limit_name(&base.name),
            rules: vec![rule],
            from_call: false,
            ..base.clone()
        }
    }
}

/// A limit created for the rule of a call.
#[derive(Debug, Clone)]
pub(super) struct CallLimit {
    pub(super) limit: NamedLimit,
    created_at: u64,
}

impl CallLimit {
    /// The rule, if this limit is based on `base`.
    fn rule_of(&self, base: &str) -> Option<&str> {
        let rule = self.limit.name.strip_prefix(base)?.strip_prefix(' ')?;
        (!rule.contains(' ')).then_some(rule)
    }

    /// Whether this limit is based on one of these.
    pub(super) fn is_based_on(&self, limits: &[NamedLimit]) -> bool {
        let mut bases = limits.iter().filter(|limit| limit.from_call);
        bases.any(|base| self.rule_of(&base.name).is_some())
    }
}

impl EngineState {
    /// Creates the limit of a target whose name is a [`CallRule::limit_name`], unless the limit exists.
    ///
    /// # Errors
    /// When the rule is not accepted for this counter.
    pub(super) fn ensure_call_limit(&mut self, target: &Target, now: u64) -> Result<(), CallError> {
        let Some((base, rule)) = CallRule::parse(&target.limit) else {
            return Ok(());
        };
        if !self.is_from_call(base) {
            return Err(match self.catalog.get(base) {
                Some(_) => CallError::InvalidRule(format!(
                    "{base:?} has configured rules: omit `interval` and `requests`"
                )),
                None => CallError::UnknownLimit(base.to_owned()),
            });
        }
        let counter: Arc<str> = Arc::from(&*target.counter);
        for other in &self.call_limits {
            if let Some(rule) = other.rule_of(base)
                && other.limit.name != target.limit
                && self.is_in_use(&other.limit.name, &counter, now)
            {
                return Err(CallError::InvalidRule(format!(
                    "counter {base}/{counter} is in use under rule {rule}; a different rule is accepted once that usage has expired"
                )));
            }
        }
        if self.catalog.get(&target.limit).is_some() {
            return Ok(());
        }
        if !self.has_capacity(base) {
            self.drop_unused(base, now);
        }
        if !self.has_capacity(base) {
            return Err(CallError::InvalidRule(format!(
                "{base:?} already has {RULES_MAX} rules that are in use or less than ten minutes old: use one of them, or retry later"
            )));
        }
        self.add_call_limit(base, rule, now);
        self.apply(now);
        Ok(())
    }

    /// Whether a counter has usage, booked slots or feedback restrictions.
    fn is_in_use(&self, limit: &str, counter: &Arc<str>, now: u64) -> bool {
        self.catalog.get(limit).is_some_and(|limit| {
            let mut rules = limit.rules.iter();
            let key = [(Arc::clone(&limit.name), Arc::clone(counter))];
            rules.any(|it| self.core.is_in_use(it.id, counter, now))
                || self.feedback.remaining(&key, now).is_some()
        })
    }

    /// Whether calls of this limit may provide another rule.
    fn has_capacity(&self, base: &str) -> bool {
        let limits = self.call_limits.iter();
        limits.filter(|it| it.rule_of(base).is_some()).count() < RULES_MAX
    }

    /// Drops the limits based on this one that have no counters, after evicting idle counters.
    fn drop_unused(&mut self, base: &str, now: u64) {
        self.core.evict_idle(IDLE_SCAN_MAX, now);
        self.feedback.expire(now);
        let (core, catalog, feedback) = (&self.core, &self.catalog, &self.feedback);
        let has_counters = |limit: &CatalogLimit| {
            let mut rules = limit.rules.iter();
            feedback.counters_of(&limit.name) > 0 || rules.any(|it| core.keys_of(it.id) > 0)
        };
        self.call_limits.retain(|it| {
            it.rule_of(base).is_none()
                || now < it.created_at.saturating_add(LIFETIME_MIN)
                || catalog.get(&it.limit.name).is_some_and(has_counters)
        });
    }

    fn add_call_limit(&mut self, base: &str, rule: CallRule, now: u64) {
        let mut limits = self.limits.iter();
        if let Some(base) = limits.find(|limit| limit.from_call && limit.name == base) {
            self.call_limits.push(CallLimit {
                limit: rule.limit(base),
                created_at: now,
            });
        }
    }

    /// Whether calls provide the rule of this limit.
    pub(super) fn is_from_call(&self, name: &str) -> bool {
        let mut limits = self.limits.iter();
        limits.any(|limit| limit.from_call && limit.name == name)
    }

    /// Recreates the limit that a record names, if a call created it. The age of its rule is unknown, so it can be dropped at any time.
    pub(super) fn restore_call_limit(&mut self, name: &str) {
        if let Some((base, rule)) = CallRule::parse(name)
            && self.has_capacity(base)
            && self.call_limits.iter().all(|it| it.limit.name != name)
        {
            self.add_call_limit(base, rule, 0);
        }
    }
}
