//! The key table: a bounded table of the states of all keys. Idle entries are evicted for new keys.
//!
//! Half of the entries are divided equally among all limits; the other half is first come, first served. Untrusted clients that invent
//! keys under one limit therefore cannot evict all keys of other limits.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

use crate::{decision::LimitId, meter::KeyState};

/// Entries scanned for idle keys at each insertion.
const SCANNED: usize = 2;

/// Entries scanned for idle keys at an insertion into a full table.
const SCANNED_WHEN_FULL: usize = 256;

/// Tables with fewer entries evict nothing before they are full.
const SMALL: usize = 1_024;

#[derive(Debug)]
pub(crate) struct KeyTable<K> {
    /// Indexes of entries by limit and key. The hash has a random seed, because untrusted clients may choose the keys.
    table: HashTable<u32>,
    pub(crate) entries: Vec<Entry<K>>,
    /// Indexes of free entries.
    free: Vec<u32>,
    max: usize,
    of_limits: Vec<LimitTotals>,
    /// Number of entries that are guaranteed to each limit.
    guaranteed: usize,
    /// Number of entries in use beyond the guaranteed ones, in all limits.
    extra: usize,
    /// Heap memory of all states, and its maximum.
    bytes: usize,
    bytes_max: usize,
    hasher: foldhash::fast::RandomState,
    /// Index of the last scanned entry, like the hand of the CLOCK algorithm.
    hand: usize,
    tracks_changes: bool,
    /// Indexes of changed entries, without duplicates.
    changed: Vec<u32>,
    evicted: Vec<(LimitId, K)>,
}

/// The resources of one limit.
#[derive(Debug, Clone, Copy)]
struct LimitTotals {
    keys: usize,
    /// Heap memory of each key.
    bytes_each: usize,
}

#[derive(Debug)]
pub(crate) struct Entry<K> {
    pub(crate) key: Option<K>,
    pub(crate) limit: LimitId,
    /// Whether the state was changed since the last scan.
    was_used: bool,
    /// Whether the entry is listed in `changed`.
    is_changed: bool,
    pub(crate) state: KeyState,
}

impl<K: Hash + Eq> KeyTable<K> {
    pub(crate) fn new(max: usize, bytes_max: usize) -> Self {
        Self {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            max: max.min(u32::MAX as usize),
            of_limits: Vec::new(),
            guaranteed: 0,
            extra: 0,
            bytes: 0,
            bytes_max,
            hasher: foldhash::fast::RandomState::default(),
            hand: 0,
            tracks_changes: false,
            changed: Vec::new(),
            evicted: Vec::new(),
        }
    }

    /// Records changes for [`take_changes`](Self::take_changes) from now on.
    pub(crate) fn track_changes(&mut self) {
        self.tracks_changes = true;
    }

    /// Calls `each` with every key that changed since the last call, and its state; `None` for evicted keys.
    pub(crate) fn take_changes(&mut self, mut each: impl FnMut(LimitId, &K, Option<&KeyState>)) {
        for (limit, key) in std::mem::take(&mut self.evicted) {
            if self.find(limit, &key).is_none() {
                each(limit, &key, None);
            }
        }
        for index in std::mem::take(&mut self.changed) {
            let entry = &mut self.entries[index as usize];
            entry.is_changed = false;
            if let Some(key) = &entry.key {
                each(entry.limit, key, Some(&entry.state));
            }
        }
    }

    /// Removes all keys of these limits.
    pub(crate) fn clear_limits(&mut self, limits: &[LimitId]) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.key.is_some() && limits.contains(&entry.limit) {
                self.remove(u32::try_from(index).expect("less than 2^32 entries"));
            }
        }
    }

    /// Adds a limit whose keys take `bytes_each` of heap memory.
    pub(crate) fn add_limit(&mut self, bytes_each: usize) {
        let keys = 0;
        self.of_limits.push(LimitTotals { keys, bytes_each });
        self.guaranteed = self.max / 2 / self.of_limits.len();
        let limits = self.of_limits.iter();
        self.extra = limits
            .map(|it| it.keys.saturating_sub(self.guaranteed))
            .sum();
    }

    /// Sets the heap memory of each key of a limit.
    pub(crate) fn change_limit(&mut self, limit: LimitId, bytes_each: usize) {
        let of = &mut self.of_limits[limit.index()];
        self.bytes = self.bytes - of.keys * of.bytes_each + of.keys * bytes_each;
        of.bytes_each = bytes_each;
    }

    pub(crate) fn exceeds_bytes(&self) -> bool {
        self.bytes > self.bytes_max
    }

    /// Whether a key can be inserted if the entries guaranteed to other limits are ignored.
    pub(crate) fn has_free_entry(&self, limit: LimitId) -> bool {
        let bytes = self.of_limits[limit.index()].bytes_each;
        self.len() < self.max && (bytes == 0 || self.bytes.saturating_add(bytes) <= self.bytes_max)
    }

    /// Whether a key of each of these limits can be inserted.
    fn has_capacity(&self, limits: impl Iterator<Item = LimitId>) -> bool {
        let (mut length, mut extra, mut added) = (self.len(), self.extra, 0_usize);
        for limit in limits {
            let of = &self.of_limits[limit.index()];
            length += 1;
            added = added.saturating_add(of.bytes_each);
            if of.keys >= self.guaranteed {
                extra += 1;
                if extra + self.guaranteed * self.of_limits.len() > self.max {
                    return false;
                }
            }
        }
        // Bookings may use up all bytes. Keys without heap memory can still be inserted.
        length <= self.max && (added == 0 || self.bytes.saturating_add(added) <= self.bytes_max)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Number of keys of one limit.
    pub(crate) fn len_of(&self, limit: LimitId) -> usize {
        self.of_limits[limit.index()].keys
    }

    #[inline]
    pub(crate) fn find(&self, limit: LimitId, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one((limit, key));
        let entries = &self.entries;
        let is_it = |index: &u32| {
            let entry = &entries[*index as usize];
            entry.limit == limit && entry.key.as_ref() == Some(key)
        };
        self.table.find(hash, is_it).copied()
    }

    #[inline]
    pub(crate) fn state(&self, index: u32) -> &KeyState {
        &self.entries[index as usize].state
    }

    #[inline]
    pub(crate) fn update(&mut self, index: u32, change: impl FnOnce(&mut KeyState)) {
        let state = self.state_mut(index);
        let before = state.bookings_bytes();
        change(state);
        let after = state.bookings_bytes();
        self.bytes = self.bytes - before + after;
    }

    /// A state, for changes that leave the bookings as they are: only [`update`](Self::update) accounts for their memory.
    #[inline]
    pub(crate) fn state_mut(&mut self, index: u32) -> &mut KeyState {
        let entry = &mut self.entries[index as usize];
        entry.was_used = true;
        if self.tracks_changes && !entry.is_changed {
            entry.is_changed = true;
            self.changed.push(index);
        }
        &mut entry.state
    }

    /// Changes the states of all keys of some limits.
    pub(crate) fn update_all(
        &mut self,
        is_affected: impl Fn(LimitId) -> bool,
        mut change: impl FnMut(LimitId, &mut KeyState),
    ) {
        for index in 0..self.entries.len() {
            let Entry { key, limit, .. } = &self.entries[index];
            if key.is_some() && is_affected(*limit) {
                let (index, limit) = (u32::try_from(index), *limit);
                let index = index.expect("less than 2^32 entries");
                self.update(index, |state| change(limit, state));
            }
        }
    }

    /// Evicts idle keys, except those in `kept`, until a key of each of these limits can be inserted.
    pub(crate) fn make_room(
        &mut self,
        limits: impl Iterator<Item = LimitId> + Clone,
        kept: &[Option<u32>],
        is_idle: impl Fn(LimitId, &KeyState) -> bool,
    ) -> bool {
        let is_idle =
            |index, limit, state: &KeyState| !kept.contains(&Some(index)) && is_idle(limit, state);
        // Evict about as many keys as are inserted, so that long scans are rare.
        if self.free.len() < limits.clone().count() && self.entries.len() >= SMALL {
            self.scan(SCANNED, true, &is_idle);
        }
        if self.has_capacity(limits.clone()) {
            return true;
        }
        self.scan(SCANNED_WHEN_FULL, false, &is_idle);
        self.has_capacity(limits)
    }

    pub(crate) fn evict_idle(
        &mut self,
        entries: usize,
        is_idle: impl Fn(LimitId, &KeyState) -> bool,
    ) -> usize {
        self.scan(entries, false, &|_, limit, it: &KeyState| {
            is_idle(limit, it)
        })
    }

    /// Scans the next `entries` entries and evicts those that are idle. With `spare_used`, keys used since the last scan stay, so that
    /// active keys are not recreated repeatedly. Returns the number of evicted keys.
    fn scan(
        &mut self,
        entries: usize,
        spare_used: bool,
        is_idle: &impl Fn(u32, LimitId, &KeyState) -> bool,
    ) -> usize {
        let mut evicted = 0;
        for _ in 0..entries.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            let index = u32::try_from(self.hand).expect("less than 2^32 entries");
            let entry = &mut self.entries[self.hand];
            let was_used = std::mem::take(&mut entry.was_used);
            let is_spared = spare_used && was_used;
            if !is_spared && entry.key.is_some() && is_idle(index, entry.limit, &entry.state) {
                self.remove(index);
                evicted += 1;
            }
        }
        evicted
    }

    fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if let Some(key) = entry.key.take() {
            let hash = self.hasher.hash_one((entry.limit, &key));
            if let Ok(found) = self.table.find_entry(hash, |it| *it == index) {
                found.remove();
            }
            let state = std::mem::replace(&mut entry.state, KeyState::none());
            if self.tracks_changes {
                self.evicted.push((entry.limit, key));
            }
            let of = &mut self.of_limits[entry.limit.index()];
            of.keys -= 1;
            self.extra -= usize::from(of.keys >= self.guaranteed);
            self.bytes -= of.bytes_each + state.bookings_bytes();
            self.free.push(index);
        }
    }

    /// Inserts a new key. The table must have capacity for it.
    pub(crate) fn insert(&mut self, limit: LimitId, key: K, state: KeyState) -> u32 {
        let of = &mut self.of_limits[limit.index()];
        self.extra += usize::from(of.keys >= self.guaranteed);
        of.keys += 1;
        self.bytes += of.bytes_each + state.bookings_bytes();
        let hash = self.hasher.hash_one((limit, &key));
        let entry = Entry {
            key: Some(key),
            limit,
            was_used: true,
            is_changed: false,
            state,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("less than 2^32 entries")
            }
        };
        let (entries, hasher) = (&self.entries, &self.hasher);
        let rehash = |index: &u32| {
            let entry = &entries[*index as usize];
            hasher.hash_one((entry.limit, entry.key.as_ref().expect("it is in the table")))
        };
        self.table.insert_unique(hash, index, rehash);
        index
    }
}
