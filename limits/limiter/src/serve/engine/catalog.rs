//! Which limits there are: their names, their rules, and where the core keeps each rule.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use limits::{
    Carry, DEMANDS_MAX, Demand, Limit, LimitId, Limits,
    rules::{NamedLimit, Rule, Rules},
};

use super::counting::{CHECKED, Counting, unfit};

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
    pub(super) every_call: bool,
    pub(super) rules: Vec<Placed>,
}

/// A rule, and where the core keeps it.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub(super) name: Arc<str>,
    pub(super) rule: Rule,
    pub(super) id: LimitId,
}

/// What limits leave behind that are not there any more.
#[derive(Debug, Default)]
pub(super) struct Gone {
    pub(super) places: Vec<u32>,
    pub(super) rules: Vec<LimitId>,
}

/// All limits. A limit has a place, which it keeps for as long as it is there.
#[derive(Debug)]
pub(super) struct Catalog {
    /// What the core keeps of each limit.
    counting: Counting,
    places: Vec<Option<Named>>,
    by_name: BTreeMap<Arc<str>, u32>,
    /// The limit and the rule of each of the core's limits; `None` where it is of none now.
    owners: Vec<Option<(u32, u32)>>,
    /// The core's limits, and places, that are of none now.
    free: Vec<LimitId>,
    free_places: Vec<u32>,
    every_call: Vec<u32>,
}

/// What limits can be served; sentences that say what is wrong.
pub fn mistakes(rules: &Rules) -> Vec<String> {
    let mut mistakes = Vec::new();
    if rules.limits.len() > LIMITS_MAX {
        let number = rules.limits.len();
        mistakes.push(format!("{number} limits are more than {LIMITS_MAX}"));
    }
    for limit in &rules.limits {
        if limit.name.contains('/') || limit.name.len() > LIMIT_BYTES_MAX {
            mistakes.push(format!(
                "limits.{}: a name has up to {LIMIT_BYTES_MAX} bytes and no slash, as it is part of a path",
                limit.name
            ));
        }
    }
    mistakes.extend(unfit(rules));
    mistakes
}

impl Catalog {
    pub(super) fn new(counting: Counting) -> Self {
        Self {
            counting,
            places: Vec::new(),
            by_name: BTreeMap::new(),
            owners: Vec::new(),
            free: Vec::new(),
            free_places: Vec::new(),
            every_call: Vec::new(),
        }
    }

    pub(super) fn place(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, place: u32) -> &Named {
        let named = self.places[place as usize].as_ref();
        named.expect("a place of a limit that is there")
    }

    /// All limits with their places, by name.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Named)> {
        let places = self.by_name.values();
        places.map(|place| (*place, self.get(*place)))
    }

    /// Places there are, of limits or not.
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// The limit and the rule that the core's limit is of.
    pub(super) fn owner(&self, id: LimitId) -> Option<(u32, &Named, &Placed)> {
        let (place, rule) = (*self.owners.get(id.index())?)?;
        let named = self.get(place);
        Some((place, named, &named.rules[rule as usize]))
    }

    /// What a call asks of every rule that it is under: of the limits that it names, each with a counter, and of those of every call. `None`
    /// when these are too many.
    pub(super) fn demands(
        &self,
        of: &[(u32, Arc<str>)],
        whole: &Arc<str>,
        requests: u64,
    ) -> Option<Vec<Demand<Arc<str>>>> {
        let mut demands = Vec::with_capacity(4);
        let whole = self.every_call.iter().map(|place| (place, whole));
        let named = of.iter().map(|(place, counter)| (place, counter));
        for (place, key) in named.chain(whole) {
            for placed in &self.get(*place).rules {
                demands.push(Demand {
                    limit: placed.id,
                    key: Arc::clone(key),
                    requests,
                });
            }
        }
        (demands.len() <= DEMANDS_MAX).then_some(demands)
    }

    pub(super) fn every_call(&self) -> &[u32] {
        &self.every_call
    }

    /// What is not among other limits.
    pub(super) fn gone(&self, new: &[NamedLimit]) -> Gone {
        let new = new.iter().map(|limit| (&*limit.name, limit));
        let new: BTreeMap<&str, &NamedLimit> = new.collect();
        let mut gone = Gone::default();
        for (place, named) in self.all() {
            let same = new.get(&*named.name);
            if same.is_none() {
                gone.places.push(place);
            }
            let rules = same.map_or(&[][..], |same| &same.rules);
            let is_there = |placed: &Placed| rules.iter().any(|rule| *rule.id == *placed.name);
            let left = named.rules.iter().filter(|placed| !is_there(placed));
            gone.rules.extend(left.map(|placed| placed.id));
        }
        gone
    }

    /// Takes other limits into force. What a rule has used follows it by the names of its limit and its own; what is gone is forgotten.
    pub(super) fn change(&mut self, core: &mut Core, new: &[NamedLimit], now: u64) {
        let mut known: BTreeMap<(Arc<str>, Arc<str>), Placed> = BTreeMap::new();
        let old = std::mem::take(&mut self.by_name);
        for (name, place) in &old {
            let named = self.places[*place as usize].take();
            for placed in named.into_iter().flat_map(|named| named.rules) {
                known.insert((Arc::clone(name), Arc::clone(&placed.name)), placed);
            }
        }
        let mut kept = Vec::new();
        for limit in new {
            for rule in &limit.rules {
                kept.push(known.remove(&(Arc::from(&*limit.name), Arc::from(&*rule.id))));
            }
        }
        // Made in one pass over all counters.
        let mut changes = Vec::new();
        for gone in known.into_values() {
            self.owners[gone.id.index()] = None;
            self.free.push(gone.id);
        }
        let there: HashSet<&str> = new.iter().map(|limit| &*limit.name).collect();
        let has_gone = |name: &Arc<str>| !there.contains(&**name);
        let places = old.iter().filter(|(name, _)| has_gone(name));
        self.free_places.extend(places.map(|(_, place)| *place));
        self.every_call.clear();
        let mut kept = kept.into_iter();
        for limit in new {
            let name: Arc<str> = Arc::from(&*limit.name);
            let place = match old.get(&name) {
                Some(place) => *place,
                None => self.free_places.pop().unwrap_or_else(|| {
                    self.places.push(None);
                    u32::try_from(self.places.len() - 1).expect("a bounded number")
                }),
            };
            let rules = limit.rules.iter().zip(&mut kept).enumerate();
            let rules = rules.map(|(index, (rule, kept))| {
                let id = self.placed(core, rule, kept, &mut changes);
                let index = u32::try_from(index).expect("few rules");
                self.owners
                    .resize(self.owners.len().max(id.index() + 1), None);
                self.owners[id.index()] = Some((place, index));
                Placed {
                    name: Arc::from(&*rule.id),
                    rule: rule.clone(),
                    id,
                }
            });
            let named = Named {
                name: Arc::clone(&name),
                every_call: limit.every_call,
                rules: rules.collect(),
            };
            self.places[place as usize] = Some(named);
            self.by_name.insert(name, place);
            if limit.every_call {
                self.every_call.push(place);
            }
        }
        core.change_all(&changes, now).expect(CHECKED);
    }

    /// Where the core keeps a rule from now on, after these changes.
    fn placed(
        &mut self,
        core: &mut Core,
        rule: &Rule,
        kept: Option<Placed>,
        changes: &mut Vec<(LimitId, Limit, Carry)>,
    ) -> LimitId {
        let part = self.counting.part(rule.limit);
        if let Some(kept) = kept {
            if kept.rule.limit != rule.limit {
                changes.push((kept.id, part, Carry::Requests));
            }
            return kept.id;
        }
        match self.free.pop() {
            Some(id) => {
                changes.push((id, part, Carry::Reset));
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
            let id = catalog.get(catalog.place(name).unwrap()).rules[0].id;
            core.standing(id, &counter, 0).used
        };
        for name in ["a", "b"] {
            let of = [(catalog.place(name).unwrap(), Arc::clone(&counter))];
            let demands = catalog.demands(&of, &whole, 3).unwrap();
            core.reserve(&demands, 0, Duration::ZERO);
        }
        let place = catalog.place("a");
        let text = "[limits.c]\nrules = [{ id = 'x', rate = '1/h', burst = 9 }]\n\
                    [limits.a]\nrules = [{ id = 'y', rate = '1/s' }, { id = 'x', rate = '2/h', burst = 9 }]";
        catalog.change(&mut core, &rules(text), 0);
        assert_eq!(catalog.place("a"), place);
        assert_eq!(catalog.place("b"), None);
        let x = catalog.get(place.unwrap()).rules[1].id;
        assert_eq!(core.standing(x, &counter, 0).used, 3);
        assert_eq!(used(&catalog, &core, "c"), 0);
        for (place, named) in catalog.all() {
            for placed in &named.rules {
                let (owner, _, owned) = catalog.owner(placed.id).unwrap();
                assert_eq!((owner, owned.id), (place, placed.id));
            }
        }
    }
}
