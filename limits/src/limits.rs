//! All limits and what they keep for each key; one reservation over any number of them.

mod change;
mod concerns;
mod recording;
mod remaining;
mod rescheduling;
mod saving;

use std::{borrow::Cow, hash::Hash, time::Duration};

use self::concerns::{Concern, Concerns};
use crate::{
    decision::{Decision, Demand, Limit, LimitId, Refusal},
    keys::{Keys, TableFull},
    meter::{KeyState, Meter},
    rate::RateError,
};

/// Most limits that one call may be under.
pub const DEMANDS_MAX: usize = 16;

/// How often the limits of a call are asked again for the moment that another gave, before the last answer of each stands.
const ROUNDS_MAX: usize = 64;

/// Time stands still here: what is due later still has a moment.
const END_OF_TIME: u64 = u64::MAX / 2;

#[derive(Debug, Clone)]
struct Rule {
    limit: Limit,
    meter: Meter,
    /// Of keys that were never seen, where that is not a fresh one.
    unseen: Option<KeyState>,
}

impl Rule {
    /// The state that a key begins with.
    fn first(&self) -> KeyState {
        let unseen = self.unseen.clone();
        unseen.unwrap_or_else(|| self.meter.fresh())
    }
}

/// Limits, and what they keep. Pure: time is what the caller says it is, in nanoseconds.
///
/// Time should not go back. When it does, it stands still here until it has caught up, so that no limit is exceeded.
///
/// Memory is bounded: `keys_max` keys in all limits together. A key that is idle, which is the same as
/// one that was never seen, makes room for others. Half of the places belong to all limits alike, and the others to those who come first:
/// the keys of one limit do not take all the room of another.
#[derive(Debug)]
pub struct Limits<K> {
    rules: Vec<Rule>,
    keys: Keys<K>,
    /// The latest time that was told.
    clock: u64,
}

impl<K: Hash + Eq + Clone> Limits<K> {
    /// No limits yet, and room for so many keys.
    #[must_use]
    pub fn new(keys_max: usize) -> Self {
        Self::with_memory(keys_max, usize::MAX)
    }

    /// The same, with so many bytes at most beside those places: logs and step windows take 8 bytes for each call or step of their windows.
    #[must_use]
    pub fn with_memory(keys_max: usize, bytes_max: usize) -> Self {
        Self {
            rules: Vec::new(),
            keys: Keys::new(keys_max, bytes_max),
            clock: 0,
        }
    }

    /// Adds a limit.
    ///
    /// # Errors
    /// When its numbers cannot be kept to.
    ///
    /// # Panics
    /// When there are 2^32 of them.
    pub fn add(&mut self, limit: impl Into<Limit>) -> Result<LimitId, RateError> {
        let limit = limit.into();
        let algorithm = limit.algorithm.checked()?;
        let id = u32::try_from(self.rules.len()).expect("less than 2^32 limits");
        let meter = Meter::new(&algorithm);
        self.keys.add_limit(meter.bytes_each());
        self.rules.push(Rule {
            meter,
            limit,
            unseen: None,
        });
        Ok(LimitId(id))
    }

    /// A limit as it is now.
    ///
    /// # Panics
    /// When it is of another [`Limits`].
    #[must_use]
    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.rules[id.index()].limit
    }

    /// Decides on a call, and takes what it asks for at the moment when it may go: of all limits, or of none.
    ///
    /// A call that would have to wait for longer than `max_wait` is refused: with 0, all that would have to wait. Of several
    /// limits, the latest moment counts, and its limit is the binding one.
    ///
    /// Costs a lookup for each demand, and no allocation for keys that are known.
    ///
    /// # Panics
    /// When there are more than [`DEMANDS_MAX`] demands, or one is on a limit of another [`Limits`].
    #[inline]
    pub fn reserve(&mut self, demands: &[Demand<K>], now: u64, max_wait: Duration) -> Decision {
        self.reserve_from(demands, 0, now, max_wait)
    }

    /// The same for a call that must not go before `from`, whatever the limits say: its time is taken then. Where nothing else makes
    /// it wait, the binding limit is that of the first demand.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve) does.
    #[inline]
    pub fn reserve_from(
        &mut self,
        demands: &[Demand<K>],
        from: u64,
        now: u64,
        max_wait: Duration,
    ) -> Decision {
        // Few limits need not pay for the room of many.
        match demands.len() {
            0..=1 => self.reserve_of::<1>(demands, from, now, max_wait),
            2..=4 => self.reserve_of::<4>(demands, from, now, max_wait),
            _ => self.reserve_of::<DEMANDS_MAX>(demands, from, now, max_wait),
        }
    }

    fn reserve_of<const MAX: usize>(
        &mut self,
        demands: &[Demand<K>],
        from: u64,
        now: u64,
        max_wait: Duration,
    ) -> Decision {
        let now = self.pass_to(now);
        let mut concerns = self.concerns::<MAX>(demands);
        let decision = self.decide(&concerns, from, now, max_wait);
        if let Some(at) = decision.at(now) {
            if let Err((limit, TableFull)) = self.make_entries(&mut concerns, demands, now) {
                let reason = Refusal::TableFull;
                return Decision::Refused { limit, reason };
            }
            for concern in concerns.all() {
                let entry = concern.entry.expect("its entry was made");
                let meter = &self.rules[concern.limit.index()].meter;
                let state = self.keys.state_mut(entry);
                if !meter.take_now(state, concern.requests, at, now) {
                    self.update(concern, |meter, state| {
                        meter.take(state, concern.requests, at, now);
                    });
                }
            }
        } else {
            self.count_refused(&mut concerns, demands, now);
        }
        decision
    }

    /// When a call could go if it asked at `now`, and which limit is the binding one. Changes nothing.
    ///
    /// # Errors
    /// When it could not, however long it waited: it is for too many requests, or a queue is full.
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve) does.
    pub fn peek(
        &self,
        demands: &[Demand<K>],
        now: u64,
    ) -> Result<(u64, Option<LimitId>), (LimitId, Refusal)> {
        let now = self.at_clock(now);
        self.earliest(&self.concerns::<DEMANDS_MAX>(demands), now, now)
    }

    /// The same for a call that must not go before `from`.
    ///
    /// # Errors
    /// As [`peek`](Self::peek).
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve) does.
    pub fn peek_from(
        &self,
        demands: &[Demand<K>],
        from: u64,
        now: u64,
    ) -> Result<(u64, Option<LimitId>), (LimitId, Refusal)> {
        let now = self.at_clock(now);
        self.earliest(&self.concerns::<DEMANDS_MAX>(demands), from, now)
    }

    /// The state of a key, or that of one that was never seen.
    fn state_of(&self, limit: LimitId, key: &K) -> Cow<'_, KeyState> {
        match self.keys.find(limit, key) {
            Some(entry) => Cow::Borrowed(self.keys.state(entry)),
            None => Cow::Owned(self.rules[limit.index()].first()),
        }
    }

    /// Forgets keys that are idle, looking at most at so many. There is no need to; their places serve the next keys.
    pub fn evict_idle(&mut self, looked_at: usize, now: u64) -> usize {
        let now = self.pass_to(now);
        let rules = &self.rules;
        self.keys.evict_idle(looked_at, |limit, state| {
            rules[limit.index()].meter.is_idle(state, now)
        })
    }

    /// How many keys are kept, of all limits together.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// How many of them one limit has.
    ///
    /// # Panics
    /// When the limit is of another [`Limits`].
    #[must_use]
    pub fn keys_of(&self, limit: LimitId) -> usize {
        self.keys.len_of(limit)
    }

    fn pass_to(&mut self, now: u64) -> u64 {
        self.clock = self.at_clock(now);
        self.clock
    }

    fn at_clock(&self, now: u64) -> u64 {
        now.min(END_OF_TIME).max(self.clock)
    }

    /// Changes the state of an entry that was made.
    #[inline]
    fn update(&mut self, concern: &Concern, change: impl FnOnce(&Meter, &mut KeyState)) {
        let entry = concern.entry.expect("its entry was made");
        let meter = &self.rules[concern.limit.index()].meter;
        self.keys.update(entry, |state| change(meter, state));
    }

    /// What a call concerns: what it asks of one limit for one key more than once is asked for together.
    fn concerns<const MAX: usize>(&self, demands: &[Demand<K>]) -> Concerns<MAX> {
        assert!(demands.len() <= MAX, "too many limits for one call");
        let nothing = Concern {
            limit: LimitId(0),
            requests: 0,
            entry: None,
            demand: 0,
        };
        let mut concerns = Concerns {
            all: [nothing; MAX],
            length: 0,
        };
        for (index, demand) in demands.iter().enumerate() {
            if demand.requests == 0 {
                continue;
            }
            let same = concerns.all[..concerns.length]
                .iter_mut()
                .find(|it| it.limit == demand.limit && demands[it.demand].key == demand.key);
            if let Some(same) = same {
                same.requests = same.requests.saturating_add(demand.requests);
                continue;
            }
            concerns.all[concerns.length] = Concern {
                limit: demand.limit,
                requests: demand.requests,
                entry: self.keys.find(demand.limit, &demand.key),
                demand: index,
            };
            concerns.length += 1;
        }
        concerns
    }

    /// The first moment from `now` and from `from` on at which all limits let a call go, and which one made it wait.
    #[inline]
    fn earliest<const MAX: usize>(
        &self,
        concerns: &Concerns<MAX>,
        from: u64,
        now: u64,
    ) -> Result<(u64, Option<LimitId>), (LimitId, Refusal)> {
        let (mut at, mut binding) = (now.max(from), None);
        for concern in concerns.all() {
            let rule = &self.rules[concern.limit.index()];
            if !rule.meter.can_pass(concern.requests) {
                let max = rule.limit.algorithm.max_burst();
                return Err((concern.limit, Refusal::TooMany { max }));
            }
        }
        for round in 0..2 * ROUNDS_MAX {
            let before = at;
            for concern in concerns.all() {
                let rule = &self.rules[concern.limit.index()];
                let state = match (concern.entry, &rule.unseen) {
                    (Some(entry), _) => self.keys.state(entry),
                    (None, Some(unseen)) => unseen,
                    (None, None) => continue,
                };
                let meter = &rule.meter;
                let mut from = at;
                if round == ROUNDS_MAX {
                    // Their gaps do not fit together, so behind all of them.
                    from = from.max(state.latest());
                }
                let earliest = meter.earliest(state, concern.requests, from);
                if round == 0 && meter.timeout < u64::MAX {
                    // A queue bounds the wait for itself, and not for others.
                    let wait = meter.earliest(state, concern.requests, now) - now;
                    if let Some(over) = wait.checked_sub(meter.timeout).filter(|over| *over > 0) {
                        let retry_after = Duration::from_nanos(over);
                        return Err((concern.limit, Refusal::Wait { retry_after }));
                    }
                }
                if earliest > at {
                    (at, binding) = (earliest, Some(concern.limit));
                }
            }
            // What one limit allows at a later moment, another may not any more.
            if at == before || concerns.length == 1 {
                break;
            }
        }
        Ok((at, binding))
    }

    /// Whether all limits can remember what a call leaves to others before its moment.
    #[cold]
    #[inline(never)]
    fn can_be_remembered<const MAX: usize>(
        &self,
        concerns: &Concerns<MAX>,
        at: u64,
        now: u64,
    ) -> Result<(), (LimitId, Refusal)> {
        let may_grow = !self.keys.is_beyond_bytes();
        for concern in concerns.all() {
            let rule = &self.rules[concern.limit.index()];
            let state = match concern.entry {
                Some(entry) => Cow::Borrowed(self.keys.state(entry)),
                None if may_grow => continue,
                None => Cow::Owned(rule.first()),
            };
            let meter = &rule.meter;
            let remembered_at = meter.remembered_at(&state, concern.requests, at, now, may_grow);
            if remembered_at > now {
                let retry_after = Duration::from_nanos(remembered_at - now);
                return Err((concern.limit, Refusal::Wait { retry_after }));
            }
        }
        Ok(())
    }

    #[inline]
    fn decide<const MAX: usize>(
        &self,
        concerns: &Concerns<MAX>,
        from: u64,
        now: u64,
        max_wait: Duration,
    ) -> Decision {
        let (at, binding) = match self.earliest(concerns, from, now) {
            Ok(found) => found,
            Err((limit, reason)) => return Decision::Refused { limit, reason },
        };
        let held_up = || concerns.all().first().filter(|_| at > now);
        let Some(limit) = binding.or_else(|| held_up().map(|it| it.limit)) else {
            return Decision::Now;
        };
        let wait = at - now;
        let max_wait = u64::try_from(max_wait.as_nanos()).unwrap_or(u64::MAX);
        if wait > max_wait {
            let retry_after = Duration::from_nanos(wait - max_wait);
            let reason = Refusal::Wait { retry_after };
            return Decision::Refused { limit, reason };
        }
        match self.can_be_remembered(concerns, at, now) {
            Ok(()) => Decision::At { at, limit },
            Err((limit, reason)) => Decision::Refused { limit, reason },
        }
    }

    /// Makes what is missing, or nothing.
    fn make_entries<const MAX: usize>(
        &mut self,
        concerns: &mut Concerns<MAX>,
        demands: &[Demand<K>],
        now: u64,
    ) -> Result<(), (LimitId, TableFull)> {
        let missing = || concerns.all().iter().filter(|it| it.entry.is_none());
        let Some(first) = missing().next().map(|it| it.limit) else {
            return Ok(());
        };
        for concern in missing() {
            let Rule { meter, unseen, .. } = &mut self.rules[concern.limit.index()];
            if unseen.as_ref().is_some_and(|it| meter.is_idle(it, now)) {
                *unseen = None;
            }
        }
        let (rules, keys) = (&self.rules, &mut self.keys);
        let concerned: [Option<u32>; MAX] = std::array::from_fn(|index| concerns.all[index].entry);
        let is_idle =
            |limit: LimitId, state: &KeyState| rules[limit.index()].meter.is_idle(state, now);
        let wanted = missing().map(|it| it.limit);
        if let Err(no_room) = keys.make_room(wanted, &concerned, is_idle) {
            return Err((first, no_room));
        }
        for concern in concerns
            .all_mut()
            .iter_mut()
            .filter(|it| it.entry.is_none())
        {
            let state = rules[concern.limit.index()].first();
            let key = demands[concern.demand].key.clone();
            concern.entry = Some(keys.insert(concern.limit, key, state));
        }
        Ok(())
    }

    /// Lets those limits count a refused call that count them.
    #[cold]
    fn count_refused<const MAX: usize>(
        &mut self,
        concerns: &mut Concerns<MAX>,
        demands: &[Demand<K>],
        now: u64,
    ) {
        let counts =
            |limits: &Self, it: &Concern| limits.rules[it.limit.index()].limit.count_refused;
        if !concerns.all().iter().any(|it| counts(self, it)) {
            return;
        }
        let mut counting = Concerns {
            length: 0,
            ..*concerns
        };
        for concern in concerns.all().iter().filter(|it| counts(self, it)) {
            counting.all[counting.length] = *concern;
            counting.length += 1;
        }
        if self.make_entries(&mut counting, demands, now).is_ok() {
            for concern in counting.all() {
                self.update(concern, |meter, state| {
                    meter.force(state, concern.requests, now)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
