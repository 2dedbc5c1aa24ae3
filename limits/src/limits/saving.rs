//! What outlives a process: saving the states of keys, and restoring them.

use std::hash::Hash;

use super::{Limits, Rule};
use crate::{
    decision::{Limit, LimitId, RestoreError},
    keys::Keys,
    meter::{Carry, Meter, State},
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Tells `each` of the keys in a part of the table: the limit, the key, and its state. Idle keys are left out: they are as
    /// those that were never seen. Looks at so many places from `from` on, beginning with 0, and returns where the next part begins; `None`
    /// at the end. Keys may come and go between two parts: one that is then missed was idle or not there after the first part began.
    pub fn save(
        &self,
        from: usize,
        looked_at: usize,
        now: u64,
        mut each: impl FnMut(LimitId, &K, &State),
    ) -> Option<usize> {
        let now = self.at_clock(now);
        let end = from.saturating_add(looked_at.max(1));
        for (limit, key, state) in self.keys.between(from, end) {
            if !self.rules[limit.index()].meter.is_idle(state, now) {
                each(limit, key, state);
            }
        }
        (end < self.keys.places()).then_some(end)
    }

    /// Gives a key the state that was [saved](Self::save) of it, when its limit was `was`. If the limit is another now, the state follows it as
    /// [`Carry::Requests`] says.
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
        saved: State,
        now: u64,
    ) -> Result<(), RestoreError> {
        let now = self.pass_to(now);
        let state = self.rules[id.index()].restored(was, saved, now)?;
        if let Some(place) = self.keys.find(id, &key) {
            self.keys.update(place, |it| *it = state);
            return Ok(());
        }
        if !self.keys.has_place(id) {
            let rules = &self.rules;
            let is_idle = |id: LimitId, state: &State| rules[id.index()].meter.is_idle(state, now);
            let made = self.keys.make_room(std::iter::once(id), &[], is_idle);
            made.map_err(|_| RestoreError::NoRoom)?;
        }
        self.keys.insert(id, key, state);
        Ok(())
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

    /// Calls `each` for each key that is kept, at most so many places from `from` on: its limit, how many requests of it are used, and when
    /// one could go. Returns where to go on; `None` at the end.
    pub fn each_key(
        &self,
        from: usize,
        looked_at: usize,
        now: u64,
        mut each: impl FnMut(LimitId, &K, u64, u64),
    ) -> Option<usize> {
        let now = self.at_clock(now);
        let end = from.saturating_add(looked_at.max(1));
        for (limit, key, state) in self.keys.between(from, end) {
            let meter = &self.rules[limit.index()].meter;
            let next = meter.earliest(state, 1, now);
            each(limit, key, meter.used(state, now), next);
        }
        (end < self.keys.places()).then_some(end)
    }
}

impl Rule {
    /// The state that was saved under the limit `was`, as it is under this one.
    fn restored(&self, was: &Limit, mut saved: State, now: u64) -> Result<State, RestoreError> {
        let algorithm = was.algorithm.checked();
        let from = Meter::new(&algorithm.map_err(|_| RestoreError::Unfit)?);
        if !from.fits(&saved) {
            return Err(RestoreError::Unfit);
        }
        if was.algorithm == self.limit.algorithm {
            self.meter.reserve(&mut saved);
            return Ok(saved);
        }
        Ok(self.meter.carried(&from, &saved, Carry::Requests, now))
    }
}

impl<K: Hash + Eq> Keys<K> {
    fn between(&self, from: usize, end: usize) -> impl Iterator<Item = (LimitId, &K, &State)> {
        let end = end.min(self.entries.len());
        let part = self.entries.get(from..end).unwrap_or_default().iter();
        part.filter_map(|entry| Some((entry.limit, entry.key.as_ref()?, &entry.state)))
    }
}
