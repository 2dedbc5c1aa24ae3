//! What outlives a process: telling which states of keys changed, and restoring them.

use std::hash::Hash;

use super::{Limits, Rule};
use crate::{
    decision::{Limit, LimitId, RestoreError},
    keys::Keys,
    meter::{CarryOver, KeyState, Meter},
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Has [`take_changes`](Self::take_changes) tell of what changes from now on. Whoever asks for that has to take it: it is kept until then.
    pub fn track_changes(&mut self) {
        self.keys.track_changes();
    }

    /// Calls `each` for every key whose state changed since the last time: its limit, the key, and its state; `None` where the key was forgotten. What is
    /// saved of keys so is a whole picture at any time: keys without a state are as those that were never seen.
    pub fn take_changes(&mut self, mut each: impl FnMut(LimitId, &Limit, &K, Option<&KeyState>)) {
        let rules = &self.rules;
        self.keys
            .take_changes(|id, key, state| each(id, &rules[id.index()].limit, key, state));
    }

    /// Forgets all keys of these limits.
    pub fn clear_limits(&mut self, ids: &[LimitId]) {
        self.keys.clear_limits(ids);
    }

    /// Gives a key the state that was [saved](Self::take_changes) of it, when its limit was `was`. If the limit is another now, the state follows it as
    /// [`CarryOver::Usage`] says, and is told of as changed. Returns false where nothing of it is used any more: then it needs no place.
    ///
    /// # Errors
    /// When it is not the state of such a limit, or there is no room: then nothing changes.
    ///
    /// # Panics
    /// When the limit is of another [`Limits`].
    pub fn restore(
        &mut self,
        id: LimitId,
        key: K,
        was: &Limit,
        saved: KeyState,
        now: u64,
    ) -> Result<bool, RestoreError> {
        let now = self.pass_to(now);
        let rule = &self.rules[id.index()];
        let is_same = was.algorithm == rule.limit.algorithm;
        let state = rule.restored(was, saved, now)?;
        if rule.meter.is_idle(&state, now) {
            return Ok(false);
        }
        match self.keys.find(id, &key) {
            Some(place) => self.keys.update(place, |it| *it = state),
            None if !self.keys.has_place(id) => return Err(RestoreError::TableFull),
            None => {
                let place = self.keys.insert(id, key, state);
                if !is_same {
                    self.keys.update(place, |_| {});
                }
            }
        }
        Ok(true)
    }

    /// How many requests a state had used at `now`, when its limit was `was`.
    ///
    /// # Errors
    /// When it is not the state of such a limit.
    pub fn saved_usage(was: &Limit, saved: &KeyState, now: u64) -> Result<u64, RestoreError> {
        Ok(saved_meter(was, saved)?.used(saved, now))
    }

    /// The latest time that was told.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether something of this very key is used or booked.
    ///
    /// # Panics
    /// When the limit is of another [`Limits`].
    #[must_use]
    pub fn is_in_use(&self, id: LimitId, key: &K, now: u64) -> bool {
        let meter = &self.rules[id.index()].meter;
        let now = self.at_clock(now);
        let is_used = |entry| !meter.is_idle(self.keys.state(entry), now);
        self.keys.find(id, key).is_some_and(is_used)
    }

    /// Calls `each` for each key that is kept, at most so many places from `from` on: its limit, and how many requests of it are used. Returns where to go
    /// on; `None` at the end.
    pub fn for_each_key(
        &self,
        from: usize,
        looked_at: usize,
        now: u64,
        mut each: impl FnMut(LimitId, &K, u64),
    ) -> Option<usize> {
        let now = self.at_clock(now);
        let end = from.saturating_add(looked_at.max(1));
        for (limit, key, state) in self.keys.between(from, end) {
            let meter = &self.rules[limit.index()].meter;
            each(limit, key, meter.used(state, now));
        }
        (end < self.keys.places()).then_some(end)
    }
}

/// The meter that a state was saved by.
fn saved_meter(was: &Limit, saved: &KeyState) -> Result<Meter, RestoreError> {
    let algorithm = was.algorithm.checked();
    let meter = Meter::new(&algorithm.map_err(|_| RestoreError::Mismatch)?);
    if meter.fits(saved) {
        Ok(meter)
    } else {
        Err(RestoreError::Mismatch)
    }
}

impl Rule {
    /// The state that was saved under the limit `was`, as it is under this one.
    fn restored(
        &self,
        was: &Limit,
        mut saved: KeyState,
        now: u64,
    ) -> Result<KeyState, RestoreError> {
        let from = saved_meter(was, &saved)?;
        if was.algorithm == self.limit.algorithm {
            self.meter.reserve(&mut saved);
            return Ok(saved);
        }
        Ok(self.meter.carried(&from, &saved, CarryOver::Usage, now))
    }
}

impl<K: Hash + Eq> Keys<K> {
    fn between(&self, from: usize, end: usize) -> impl Iterator<Item = (LimitId, &K, &KeyState)> {
        let end = end.min(self.entries.len());
        let part = self.entries.get(from..end).unwrap_or_default().iter();
        part.filter_map(|entry| Some((entry.limit, entry.key.as_ref()?, &entry.state)))
    }
}
