//! Another file of limits comes into force: rooms are made, closed and forgotten, debts are kept, and what waits is planned anew.

use std::collections::{BTreeMap, HashMap, HashSet};

use limits::{
    CarryOver, Decision, Demand, Rate,
    rules::{NamedLimit, Rules, Unknown},
};

use super::{EVERYBODY, NamedRoom, Shaper};
use crate::shaping::room::{Room, Terms};

impl Shaper {
    /// Takes another file of rules into force. Debts are kept, and those that wait go by the new rules.
    pub(in crate::shaping) fn change(&mut self, rules: &Rules, now: u64) {
        self.renumber(rules, now);
        self.by_dsp.clear();
        self.others = None;
        for place in &mut self.rooms {
            place.is_closing = true;
        }
        let known = self.rooms.iter().enumerate();
        let known = known.map(|(index, place)| ((place.name.clone(), place.key), index));
        let known: HashMap<_, _> = known.collect();
        let unknown = match rules.unknown {
            Unknown::Limit(index) => Some(index),
            Unknown::Refuse | Unknown::Unlimited => None,
        };
        for (index, limit) in rules.limits.iter().enumerate() {
            if limit.global {
                continue;
            }
            for key in limit.keys.iter().filter_map(|key| key.parse().ok()) {
                let place = self.room_of(rules, limit, key, &known, now);
                self.by_dsp.insert(key, place);
            }
            if unknown == Some(index) {
                self.others = Some(self.room_of(rules, limit, EVERYBODY, &known, now));
            }
        }
        self.find_strays();
        self.forget_past();
        self.replan(now);
        self.due = 0;
    }

    /// Gives each rule a number of the table of limits: the one that it has, so that its debt is kept, or another.
    fn renumber(&mut self, rules: &Rules, now: u64) {
        let mut before = std::mem::take(&mut self.numbers);
        let mut changes = Vec::new();
        for limit in &rules.limits {
            let copies: &[bool] = if limit.global {
                &[false, true]
            } else {
                &[false]
            };
            for (rule, is_observed) in limit
                .rules
                .iter()
                .flat_map(|rule| copies.iter().map(move |it| (rule, *it)))
            {
                let name = (limit.name.clone(), rule.id.clone(), is_observed);
                let shared = self.shares.limit(&limit.name, rule.limit);
                let number = match before.remove(&name) {
                    Some(number) => {
                        if *self.limits.limit(number) != shared {
                            changes.push((number, shared, CarryOver::Usage));
                        }
                        number
                    }
                    None => match self.spare.pop() {
                        Some(number) => {
                            changes.push((number, shared, CarryOver::Reset));
                            number
                        }
                        None => self.limits.add(shared).expect("the file was checked"),
                    },
                };
                self.numbers.insert(name, number);
            }
        }
        for number in before.into_values() {
            // Nothing of it is left for who gets the number next.
            changes.push((number, *self.limits.limit(number), CarryOver::Reset));
            self.spare.push(number);
        }
        let changed = self.limits.change_all(&changes, now);
        changed.expect("the file was checked");
        self.limits.evict_idle(usize::MAX, now);
    }

    /// The room of a limit for a key, by these rules.
    fn room_of(
        &mut self,
        rules: &Rules,
        limit: &NamedLimit,
        key: u32,
        known: &HashMap<(String, u32), usize>,
        now: u64,
    ) -> usize {
        let global = rules.limits.iter().filter(|limit| limit.global);
        let (mut demands, mut observed, mut names) = (Vec::new(), Vec::new(), Vec::new());
        let (mut own, mut shared) = (None, None);
        for under in std::iter::once(limit).chain(global) {
            for rule in &under.rules {
                let demand = |is_observed| {
                    let name = (under.name.clone(), rule.id.clone(), is_observed);
                    Demand {
                        limit: self.numbers[&name],
                        key: if under.global { EVERYBODY } else { key },
                        requests: 1,
                    }
                };
                demands.push(demand(false));
                observed.push(demand(under.global));
                let slowest = if under.global { &mut shared } else { &mut own };
                let limit = self.shares.limit(&under.name, rule.limit);
                *slowest = Some(slower(*slowest, limit.algorithm.mean_rate()));
                names.push(if under.global {
                    format!("{}/{}", under.name, rule.id)
                } else {
                    rule.id.clone()
                });
            }
        }
        let terms = Terms {
            handling: limit.handling,
            demands,
            observed,
            own_count: limit.rules.len(),
            rules: names,
            own,
            shared,
        };
        if let Some(&index) = known.get(&(limit.name.clone(), key)) {
            let place = &mut self.rooms[index];
            place.is_closing = false;
            place.room.set_terms(terms, now);
            return index;
        }
        self.rooms.push(NamedRoom {
            name: limit.name.clone(),
            key,
            room: Room::new(terms),
            counted: 0,
            is_closing: false,
            is_busy: false,
        });
        self.rooms.len() - 1
    }

    /// Gives those that have slots to come other ones, by the rules as they are now.
    pub(super) fn replan(&mut self, now: u64) {
        let mut waiting: Vec<(usize, u64)> = Vec::new();
        for (index, place) in self.rooms.iter().enumerate() {
            waiting.extend(place.room.slots().map(|slot| (index, slot)));
        }
        waiting.sort_by_key(|(_, slot)| *slot);
        let calls: Vec<(&[Demand<u32>], u64)> = waiting
            .iter()
            .map(|(index, slot)| (&*self.rooms[*index].room.terms.demands, *slot))
            .collect();
        let mut slots: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (index, slot) in waiting.iter().filter(|(_, slot)| *slot <= now) {
            slots.entry(*index).or_default().push(*slot);
        }
        let planned = |call: usize, decision: Decision| {
            // Who is refused asks again when the rest is handed out.
            if let Some(slot) = decision.at(now) {
                slots.entry(waiting[call].0).or_default().push(slot);
            }
        };
        self.limits.reschedule(&calls, now, planned);
        for (index, place) in self.rooms.iter_mut().enumerate() {
            place
                .room
                .set_slots(slots.remove(&index).unwrap_or_default());
        }
    }

    /// Those are in rooms that close, or in that of others, as the DSP was not named before.
    pub(super) fn find_strays(&mut self) {
        let may_have = |(index, place): &(usize, &NamedRoom)| {
            place.room.len() > 0 && (place.is_closing || Some(*index) == self.others)
        };
        self.strays.clear();
        for (index, place) in self.rooms.iter().enumerate().filter(may_have) {
            self.strays.entry(place.key).or_default().push(index);
        }
    }

    /// Forgets rooms that are closing and empty. What was counted of them is kept while their limit has another room.
    pub(super) fn retire(&mut self) {
        let is_over = |place: &NamedRoom| place.is_closing && place.room.len() == 0;
        if !self.rooms.iter().any(is_over) {
            return;
        }
        let (gone, kept) = std::mem::take(&mut self.rooms)
            .into_iter()
            .partition(is_over);
        let gone: Vec<NamedRoom> = gone;
        for place in gone {
            let past = self.past.entry(place.name).or_default();
            past.add(&place.room.figures);
        }
        self.rooms = kept;
        self.by_dsp.clear();
        self.others = None;
        self.busy.clear();
        for (index, place) in self.rooms.iter().enumerate() {
            if place.is_busy {
                self.busy.push(index);
            }
            match place.key {
                _ if place.is_closing => {}
                EVERYBODY => self.others = Some(index),
                dsp => drop(self.by_dsp.insert(dsp, index)),
            }
        }
        self.find_strays();
        self.forget_past();
    }

    /// Forgets what was counted of limits and rules that no room is under any more: files that name ever new ones would fill every scrape.
    fn forget_past(&mut self) {
        let mut rules: HashMap<&str, HashSet<&str>> = HashMap::new();
        for place in &self.rooms {
            let names = place.room.terms.rules.iter().map(String::as_str);
            rules.entry(&place.name).or_default().extend(names);
        }
        self.past.retain(|limit, past| {
            let known = rules.get(&**limit);
            past.rules
                .retain(|rule, _| known.is_some_and(|it| it.contains(&**rule)));
            known.is_some()
        });
    }
}

pub(super) fn slower(known: Option<Rate>, rate: Rate) -> Rate {
    match known {
        Some(known) if known.nanos_of(1_000_000) >= rate.nanos_of(1_000_000) => known,
        _ => rate,
    }
}
