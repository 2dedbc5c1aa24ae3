//! The active limits by name, and the [`LimitId`] of each of their rules in the core.

use std::{collections::BTreeMap, sync::Arc};

use limits::{
    CarryOver, DEMANDS_MAX, Demand, Limit, LimitId, Limits,
    rules::{ConfigErrors, NamedLimit, Rule, Rules},
};

use super::{CounterKey, Counts, exact_rules::sharing_errors};

/// Panic message if validated limits turn out to be invalid.
pub(super) const CHECKED: &str = "limits are validated when they are read";

/// Maximum number of limits.
pub const LIMITS_MAX: usize = 4_096;

/// Maximum bytes of a limit's name.
pub const LIMIT_BYTES_MAX: usize = 128;

/// The limits and counters of the library.
pub(super) type Core = Limits<Arc<str>>;

/// An active limit.
#[derive(Debug, Clone)]
pub(super) struct CatalogLimit {
    pub(super) name: Arc<str>,
    pub(super) global: bool,
    pub(super) rules: Vec<CatalogRule>,
    pub(super) counts: Counts,
}

/// A rule of an active limit.
#[derive(Debug, Clone)]
pub(super) struct CatalogRule {
    /// `limit/rule`.
    pub(super) binding: Arc<str>,
    pub(super) rule: Rule,
    pub(super) id: LimitId,
}

/// The active limits.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    limits: BTreeMap<Arc<str>, CatalogLimit>,
    /// Name of the limit and index of the rule, by [`LimitId::index`]; `None` for unused ids.
    owners: Vec<Option<(Arc<str>, usize)>>,
    unused: Vec<LimitId>,
    /// Names of the global limits.
    pub(super) global: Vec<Arc<str>>,
    /// The only counter of each global limit.
    global_counter: Arc<str>,
}

/// Returns limits that `limiter serve` accepts.
///
/// # Errors
/// With all reasons why it rejects them.
pub fn checked(rules: Rules) -> Result<Rules, ConfigErrors> {
    let mut errors = Vec::new();
    let count = rules.limits.len();
    if count > LIMITS_MAX {
        errors.push(format!("{count} limits; the maximum is {LIMITS_MAX}"));
    }
    for limit in &rules.limits {
        if limit.name.contains('/') || limit.name.len() > LIMIT_BYTES_MAX {
            errors.push(format!(
                "limits.{}: invalid name: use up to {LIMIT_BYTES_MAX} bytes and no slash, because the name is part of a path",
                limit.name
            ));
        }
    }
    errors.extend(sharing_errors(&rules));
    if errors.is_empty() {
        Ok(rules)
    } else {
        Err(ConfigErrors(errors))
    }
}

impl Catalog {
    pub(super) fn get(&self, name: &str) -> Option<&CatalogLimit> {
        self.limits.get(name)
    }

    /// All limits, sorted by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &CatalogLimit> {
        self.limits.values()
    }

    /// The rule with this id, and its limit.
    pub(super) fn owner(&self, id: LimitId) -> Option<(&CatalogLimit, &CatalogRule)> {
        let (name, rule) = self.owners.get(id.index())?.as_ref()?;
        let limit = self.limits.get(name)?;
        Some((limit, &limit.rules[*rule]))
    }

    /// Updates the counts of the limits of these counters, and of all global limits.
    pub(super) fn count(&mut self, counters: &[CounterKey], mut count: impl FnMut(&mut Counts)) {
        let names = counters.iter().map(|(limit, _)| limit);
        for name in names.chain(&self.global) {
            if let Some(limit) = self.limits.get_mut(name) {
                count(&mut limit.counts);
            }
        }
    }

    /// Demands on all rules of these counters and of global limits; `None` if there are too many rules.
    pub(super) fn demands(
        &self,
        counters: &[CounterKey],
        requests: u64,
    ) -> Option<Vec<Demand<Arc<str>>>> {
        let mut demands = Vec::with_capacity(4);
        let named = counters.iter().map(|(limit, counter)| (limit, counter));
        let global = self
            .global
            .iter()
            .map(|limit| (limit, &self.global_counter));
        for (limit, key) in named.chain(global) {
            for rule in &self.limits[limit].rules {
                demands.push(Demand {
                    limit: rule.id,
                    key: Arc::clone(key),
                    requests,
                });
            }
        }
        (demands.len() <= DEMANDS_MAX).then_some(demands)
    }

    /// Ids of the rules that `new` does not have.
    pub(super) fn removed(&self, new: &[NamedLimit]) -> Vec<LimitId> {
        let new = new.iter().map(|limit| (&*limit.name, limit));
        let new: BTreeMap<&str, &NamedLimit> = new.collect();
        let mut removed = Vec::new();
        for limit in self.all() {
            let new = new.get(&*limit.name);
            let has_rule = |id: &str| new.is_some_and(|new| new.rules.iter().any(|it| it.id == id));
            let rules = limit.rules.iter().filter(|it| !has_rule(&it.rule.id));
            removed.extend(rules.map(|it| it.id));
        }
        removed
    }

    /// Activates the limits `new`. A rule keeps its usage if the names of the rule and of its limit stay; the caller has
    /// dropped the usage of [removed](Self::removed) rules.
    pub(super) fn change(&mut self, core: &mut Core, new: &[NamedLimit], now: u64) {
        for id in self.removed(new) {
            self.owners[id.index()] = None;
            self.unused.push(id);
        }
        let mut old = std::mem::take(&mut self.limits);
        self.global.clear();
        // The core applies all changes in one pass over its counters.
        let mut changes = Vec::new();
        for limit in new {
            let name: Arc<str> = Arc::from(&*limit.name);
            let before = old.remove(&name);
            let counts = before.as_ref().map(|it| it.counts).unwrap_or_default();
            let before = before.map_or_else(Vec::new, |it| it.rules);
            let rules = limit.rules.iter().enumerate().map(|(index, rule)| {
                let current = before.iter().find(|it| it.rule.id == rule.id);
                let id = self.assign(core, rule, current, &mut changes);
                let owners = self.owners.len().max(id.index() + 1);
                self.owners.resize(owners, None);
                self.owners[id.index()] = Some((Arc::clone(&name), index));
                CatalogRule {
                    binding: Arc::from(format!("{name}/{}", rule.id)),
                    rule: rule.clone(),
                    id,
                }
            });
            let active = CatalogLimit {
                name: Arc::clone(&name),
                global: limit.global,
                rules: rules.collect(),
                counts,
            };
            if limit.global {
                self.global.push(Arc::clone(&name));
            }
            self.limits.insert(name, active);
        }
        core.change_all(&changes, now).expect(CHECKED);
    }

    /// Returns the id of a rule. If its current limit differs, adds a change of the core to `changes`.
    fn assign(
        &mut self,
        core: &mut Core,
        rule: &Rule,
        current: Option<&CatalogRule>,
        changes: &mut Vec<(LimitId, Limit, CarryOver)>,
    ) -> LimitId {
        let limit = rule.limit;
        if let Some(current) = current {
            if current.rule.limit != limit {
                changes.push((current.id, limit, CarryOver::Usage));
            }
            return current.id;
        }
        match self.unused.pop() {
            Some(id) => {
                changes.push((id, limit, CarryOver::Reset));
                id
            }
            None => core.add(limit).expect(CHECKED),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rules(text: &str) -> Vec<NamedLimit> {
        Rules::parse(text).unwrap().limits
    }

    #[test]
    fn usage_is_kept_by_the_names_of_limit_and_rule_and_dropped_with_the_rule() {
        let mut core = Core::new(100);
        let mut catalog = Catalog::default();
        let text = "[limits.a]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]\n\
                    [limits.b]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]";
        catalog.change(&mut core, &rules(text), 0);
        let counter = Arc::from("k");
        let used = |catalog: &Catalog, core: &Core, name: &str| {
            let id = catalog.get(name).unwrap().rules[0].id;
            9 - core.remaining(id, &counter, 0).requests
        };
        for name in ["a", "b"] {
            let counters = [(Arc::from(name), Arc::clone(&counter))];
            let demands = catalog.demands(&counters, 3).unwrap();
            core.reserve(&demands, 0, Duration::ZERO);
        }
        let text = "[limits.c]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]\n\
                    [limits.a]\nrules = [{ id = 'y', rate = '1/s' }, { id = 'x', rate = '2/h', burst = 9 }]";
        core.clear_limits(&catalog.removed(&rules(text)));
        catalog.change(&mut core, &rules(text), 0);
        assert!(catalog.get("b").is_none());
        let x = catalog.get("a").unwrap().rules[1].id;
        assert_eq!(core.remaining(x, &counter, 0).requests, 6);
        assert_eq!(used(&catalog, &core, "c"), 0);
        for limit in catalog.all() {
            for rule in &limit.rules {
                let (owner, owned) = catalog.owner(rule.id).unwrap();
                assert_eq!((&owner.name, owned.id), (&limit.name, rule.id));
            }
        }
    }
}
