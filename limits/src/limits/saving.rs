//! Persistence: changed states of keys, and their restoration in another process.

use std::hash::Hash;

use super::{ActiveLimit, Limits};
use crate::{
    decision::{Limit, LimitId, RestoreError},
    meter::{CarryOver, KeyState, Meter},
};

impl<K: Hash + Eq + Clone> Limits<K> {
    /// Records changes for [`take_changes`](Self::take_changes) from now on. They use memory until that call.
    pub fn track_changes(&mut self) {
        self.keys.track_changes();
    }

    /// Calls `each` with the limit, key and state of every key that changed since the last call. Evicted keys have `None` as their state.
    ///
    /// The saved states are complete at any time: a key without a saved state is equivalent to a new key.
    pub fn take_changes(&mut self, mut each: impl FnMut(LimitId, &Limit, &K, Option<&KeyState>)) {
        let limits = &self.limits;
        self.keys
            .take_changes(|id, key, state| each(id, &limits[id.index()].limit, key, state));
    }

    /// Removes all keys of these limits.
    pub fn clear_limits(&mut self, ids: &[LimitId]) {
        self.keys.clear_limits(ids);
    }

    /// Restores the state of a key that was [saved](Self::take_changes) under the limit `was`.
    ///
    /// If the limit is different now, the state is converted as with [`CarryOver::Usage`], and counts as changed. Returns false if the key
    /// is idle and needs no entry.
    ///
    /// # Errors
    /// If the state does not match `was`, or the key table is full. Then nothing changes.
    ///
    /// # Panics
    /// If the limit belongs to another [`Limits`].
    pub fn restore(
        &mut self,
        id: LimitId,
        key: K,
        was: &Limit,
        saved: KeyState,
        now: u64,
    ) -> Result<bool, RestoreError> {
        let now = self.advance_clock(now);
        let from = saved_meter(was, &saved)?;
        let ActiveLimit { meter, limit, .. } = &self.limits[id.index()];
        let is_same = was.algorithm == limit.algorithm;
        let mut state = saved;
        if is_same {
            meter.preallocate(&mut state);
        } else {
            state = meter.carried_over(&from, &state, CarryOver::Usage, now);
        }
        if meter.is_idle(&state, now) {
            return Ok(false);
        }
        match self.keys.find(id, &key) {
            Some(index) => self.keys.update(index, |it| *it = state),
            None if !self.keys.has_free_entry(id) => return Err(RestoreError::TableFull),
            None => {
                let index = self.keys.insert(id, key, state);
                if !is_same {
                    self.keys.update(index, |_| {});
                }
            }
        }
        Ok(true)
    }

    /// The number of requests in use at `now` in a state that was saved under the limit `was`.
    ///
    /// # Errors
    /// If the state does not match `was`.
    pub fn saved_usage(was: &Limit, saved: &KeyState, now: u64) -> Result<u64, RestoreError> {
        Ok(saved_meter(was, saved)?.used(saved, now))
    }

    /// The latest time that was passed to any method.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Whether a key has usage or bookings.
    ///
    /// # Panics
    /// If the limit belongs to another [`Limits`].
    pub fn is_in_use(&self, id: LimitId, key: &K, now: u64) -> bool {
        let meter = &self.limits[id.index()].meter;
        let now = self.monotonic(now);
        let is_used = |entry| !meter.is_idle(self.keys.state(entry), now);
        self.keys.find(id, key).is_some_and(is_used)
    }

    /// Scans up to `entries` entries from index `from`, and calls `each` with the limit, key and number of used requests. Returns the next
    /// index, or `None` at the end.
    pub fn for_each_key(
        &self,
        from: usize,
        entries: usize,
        now: u64,
        mut each: impl FnMut(LimitId, &K, u64),
    ) -> Option<usize> {
        let now = self.monotonic(now);
        let end = from.saturating_add(entries.max(1));
        let all = &self.keys.entries;
        for entry in all.get(from..end.min(all.len())).unwrap_or_default() {
            if let Some(key) = &entry.key {
                let meter = &self.limits[entry.limit.index()].meter;
                each(entry.limit, key, meter.used(&entry.state, now));
            }
        }
        (end < all.len()).then_some(end)
    }
}

/// The meter of a saved state.
fn saved_meter(was: &Limit, saved: &KeyState) -> Result<Meter, RestoreError> {
    let algorithm = was.algorithm.checked();
    let meter = Meter::new(&algorithm.map_err(|_| RestoreError::Mismatch)?);
    let is_valid = meter.is_valid(saved);
    is_valid.then_some(meter).ok_or(RestoreError::Mismatch)
}
