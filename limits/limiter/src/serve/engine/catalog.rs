//! Which limits there are: their names, their rules, and where the core keeps each rule.

use std::{collections::BTreeMap, sync::Arc};

use limits::{
    CarryOver, DEMANDS_MAX, Demand, Limit, LimitId, Limits,
    rules::{NamedLimit, Rule, Rules},
};

use super::{
    Counter, Counts,
    counting::{CHECKED, Counting, unfit},
};

/// Most limits of one limiter.
pub const LIMITS_MAX: usize = 4_096;

/// Most bytes of a limit's name.
pub const LIMIT_BYTES_MAX: usize = 128;

/// The core's limits, with counters for keys.
pub(super) type Core = Limits<Arc<str>>;

/// One limit.
#[derive(Debug, Clone)]
pub(super) struct Named {
    pub(super) name: Arc<str>,
    pub(super) global: bool,
    pub(super) rules: Vec<Placed>,
    pub(super) counts: Counts,
}

/// A rule, and where the core keeps it.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) name: Arc<str>,
    pub(super) rule: Rule,
    pub(super) id: LimitId,
}

/// All limits.
#[derive(Debug)]
pub(super) struct Catalog {
    /// What the core keeps of each limit.
    counting: Counting,
    limits: BTreeMap<Arc<str>, Named>,
    /// The limit of each of the core's limits, and the place of its rule; `None` where it is of none now.
    owners: Vec<Option<(Arc<str>, usize)>>,
    /// The core's limits that are of none now.
    free: Vec<LimitId>,
    global: Vec<Arc<str>>,
}

/// What limits can be served; sentences that say what is wrong.
pub fn errors(rules: &Rules) -> Vec<String> {
    let mut errors = Vec::new();
    if rules.limits.len() > LIMITS_MAX {
        let number = rules.limits.len();
        errors.push(format!("{number} limits are more than {LIMITS_MAX}"));
    }
    for limit in &rules.limits {
        if limit.name.contains('/') || limit.name.len() > LIMIT_BYTES_MAX {
            errors.push(format!(
                "limits.{}: a name has up to {LIMIT_BYTES_MAX} bytes and no slash, as it is part of a path",
                limit.name
            ));
        }
    }
    errors.extend(unfit(rules));
    errors
}

impl Catalog {
    pub(super) fn new(counting: Counting) -> Self {
        Self {
            counting,
            limits: BTreeMap::new(),
            owners: Vec::new(),
            free: Vec::new(),
            global: Vec::new(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Named> {
        self.limits.get(name)
    }

    /// All limits, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &Named> {
        self.limits.values()
    }

    /// The limit and the rule that the core's limit is of.
    pub(super) fn owner(&self, id: LimitId) -> Option<(&Named, &Placed)> {
        let (name, rule) = self.owners.get(id.index())?.as_ref()?;
        let named = self.limits.get(name)?;
        Some((named, &named.rules[*rule]))
    }

    /// Counts what was done under these limits and those of every call.
    pub(super) fn count(&mut self, of: &[Counter], mut count: impl FnMut(&mut Counts)) {
        let names = of.iter().map(|(limit, _)| limit);
        for name in names.chain(&self.global) {
            if let Some(named) = self.limits.get_mut(name) {
                count(&mut named.counts);
            }
        }
    }

    /// What a call asks of every rule that it is under: of the limits that it names, each with a counter, and of those of every call. `None`
    /// when these are too many.
    pub(super) fn demands(
        &self,
        of: &[Counter],
        whole: &Arc<str>,
        requests: u64,
    ) -> Option<Vec<Demand<Arc<str>>>> {
        let mut demands = Vec::with_capacity(4);
        let whole = self.global.iter().map(|limit| (limit, whole));
        let named = of.iter().map(|(limit, counter)| (limit, counter));
        for (limit, key) in named.chain(whole) {
            for placed in &self.limits[limit].rules {
                demands.push(Demand {
                    limit: placed.id,
                    key: Arc::clone(key),
                    requests,
                });
            }
        }
        (demands.len() <= DEMANDS_MAX).then_some(demands)
    }

    pub(super) fn global(&self) -> &[Arc<str>] {
        &self.global
    }

    /// The core's limits of rules that are not among these.
    pub(super) fn gone(&self, new: &[NamedLimit]) -> Vec<LimitId> {
        let new = new.iter().map(|limit| (&*limit.name, limit));
        let new: BTreeMap<&str, &NamedLimit> = new.collect();
        let is_gone = |named: &Named, placed: &Placed| {
            let limit = new.get(&*named.name);
            limit.is_none_or(|it| it.rules.iter().all(|rule| *rule.id != *placed.name))
        };
        let mut gone = Vec::new();
        for named in self.all() {
            let rules = named.rules.iter().filter(|it| is_gone(named, it));
            gone.extend(rules.map(|it| it.id));
        }
        gone
    }

    /// Takes other limits into force. What a rule has used follows it by the names of its limit and its own; the core has forgotten what is
    /// [gone](Self::gone).
    pub(super) fn change(&mut self, core: &mut Core, new: &[NamedLimit], now: u64) {
        for id in self.gone(new) {
            self.owners[id.index()] = None;
            self.free.push(id);
        }
        let mut old = std::mem::take(&mut self.limits);
        self.global.clear();
        // Made in one pass over all counters.
        let mut changes = Vec::new();
        for limit in new {
            let name: Arc<str> = Arc::from(&*limit.name);
            let before = old.remove(&name);
            let counts = before.as_ref().map(|it| it.counts).unwrap_or_default();
            let before = before.map_or_else(Vec::new, |it| it.rules);
            let rules = limit.rules.iter().enumerate().map(|(index, rule)| {
                let kept = before.iter().find(|it| *it.name == *rule.id);
                let id = self.placed(core, rule, kept, &mut changes);
                let owners = self.owners.len().max(id.index() + 1);
                self.owners.resize(owners, None);
                self.owners[id.index()] = Some((Arc::clone(&name), index));
                Placed {
                    name: Arc::from(&*rule.id),
                    rule: rule.clone(),
                    id,
                }
            });
            let named = Named {
                name: Arc::clone(&name),
                global: limit.global,
                rules: rules.collect(),
                counts,
            };
            if limit.global {
                self.global.push(Arc::clone(&name));
            }
            self.limits.insert(name, named);
        }
        core.change_all(&changes, now).expect(CHECKED);
    }

    /// Where the core keeps a rule from now on, after these changes.
    fn placed(
        &mut self,
        core: &mut Core,
        rule: &Rule,
        kept: Option<&Placed>,
        changes: &mut Vec<(LimitId, Limit, CarryOver)>,
    ) -> LimitId {
        let part = self.counting.part(rule.limit);
        if let Some(kept) = kept {
            if kept.rule.limit != rule.limit {
                changes.push((kept.id, part, CarryOver::Usage));
            }
            return kept.id;
        }
        match self.free.pop() {
            Some(id) => {
                changes.push((id, part, CarryOver::Reset));
                id
            }
            None => core.add(part).expect(CHECKED),
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
    fn debt_follows_a_rule_by_its_names_and_what_is_gone_is_forgotten() {
        let mut core = Core::new(100);
        let mut catalog = Catalog::new(Counting::Here);
        let text = "[limits.a]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]\n\
                    [limits.b]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]";
        catalog.change(&mut core, &rules(text), 0);
        let (counter, whole) = (Arc::from("k"), Arc::from(""));
        let used = |catalog: &Catalog, core: &Core, name: &str| {
            let id = catalog.get(name).unwrap().rules[0].id;
            9 - core.remaining(id, &counter, 0).requests
        };
        for name in ["a", "b"] {
            let of = [(Arc::from(name), Arc::clone(&counter))];
            let demands = catalog.demands(&of, &whole, 3).unwrap();
            core.reserve(&demands, 0, Duration::ZERO);
        }
        let text = "[limits.c]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]\n\
                    [limits.a]\nrules = [{ id = 'y', rate = '1/s' }, { id = 'x', rate = '2/h', burst = 9 }]";
        core.clear_limits(&catalog.gone(&rules(text)));
        catalog.change(&mut core, &rules(text), 0);
        assert!(catalog.get("b").is_none());
        let x = catalog.get("a").unwrap().rules[1].id;
        assert_eq!(core.remaining(x, &counter, 0).requests, 6);
        assert_eq!(used(&catalog, &core, "c"), 0);
        for named in catalog.all() {
            for placed in &named.rules {
                let (owner, owned) = catalog.owner(placed.id).unwrap();
                assert_eq!((&owner.name, owned.id), (&named.name, placed.id));
            }
        }
    }
}
