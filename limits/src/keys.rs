//! What is kept for each key of each limit: a bounded table, whose idle entries make room for new ones.
//!
//! Half of the places are shared out to all limits alike, and the other half is for those who come first: so a limit whose keys
//! strangers invent takes no more than half of the room.

use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

use crate::{decision::LimitId, meter::KeyState};

/// Keys that were idle are looked for at each new key: so many of those there are.
const LOOKED_AT: usize = 2;

/// The same when there is no room left.
const LOOKED_AT_WHEN_FULL: usize = 256;

/// Of no more entries, none is forgotten to make room.
const FEW: usize = 1_024;

/// All entries are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableFull;

#[derive(Debug)]
pub(crate) struct Keys<K> {
    /// Places of entries, by limit and key. With a seed of its own: keys may be chosen by strangers.
    table: HashTable<u32>,
    pub(crate) entries: Vec<Entry<K>>,
    /// Places of entries that are free.
    free: Vec<u32>,
    max: usize,
    of_limits: Vec<Taken>,
    /// How many places each limit has for itself.
    own: usize,
    /// How many are taken beyond those, by all limits.
    beyond: usize,
    /// What states have beside themselves, and most of that.
    bytes: usize,
    bytes_max: usize,
    hasher: foldhash::fast::RandomState,
    /// Where the next idle entries are looked for.
    hand: usize,
    changes: Changes<K>,
}

/// What changed since somebody asked last.
#[derive(Debug)]
struct Changes<K> {
    /// Whether somebody asks.
    are_tracked: bool,
    /// Places of entries, each once.
    changed: Vec<u32>,
    forgotten: Vec<(LimitId, K)>,
}

/// What a limit takes.
#[derive(Debug, Clone, Copy)]
struct Taken {
    keys: usize,
    bytes_each: usize,
}

#[derive(Debug)]
pub(crate) struct Entry<K> {
    pub(crate) key: Option<K>,
    pub(crate) limit: LimitId,
    /// Whether it was taken from since it was last looked at.
    was_used: bool,
    /// Whether it is listed as changed.
    is_changed: bool,
    pub(crate) state: KeyState,
}

impl<K: Hash + Eq> Keys<K> {
    pub(crate) fn new(max: usize, bytes_max: usize) -> Self {
        Self {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            max: max.min(u32::MAX as usize),
            of_limits: Vec::new(),
            own: 0,
            beyond: 0,
            bytes: 0,
            bytes_max,
            hasher: foldhash::fast::RandomState::default(),
            hand: 0,
            changes: Changes {
                are_tracked: false,
                changed: Vec::new(),
                forgotten: Vec::new(),
            },
        }
    }

    /// Has [`take_changes`](Self::take_changes) told of what changes from now on.
    pub(crate) fn track_changes(&mut self) {
        self.changes.are_tracked = true;
    }

    /// Calls `each` for every key that was forgotten or whose state changed since the last time, with that state.
    pub(crate) fn take_changes(&mut self, mut each: impl FnMut(LimitId, &K, Option<&KeyState>)) {
        for (limit, key) in std::mem::take(&mut self.changes.forgotten) {
            if self.find(limit, &key).is_none() {
                each(limit, &key, None);
            }
        }
        for place in std::mem::take(&mut self.changes.changed) {
            let entry = &mut self.entries[place as usize];
            entry.is_changed = false;
            if let Some(key) = &entry.key {
                each(entry.limit, key, Some(&entry.state));
            }
        }
    }

    /// Forgets the keys of these limits.
    pub(crate) fn clear_limits(&mut self, limits: &[LimitId]) {
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.key.is_some() && limits.contains(&entry.limit) {
                self.remove(u32::try_from(index).expect("less than 2^32 entries"));
            }
        }
    }

    /// One more limit, whose keys take so much beside their places.
    pub(crate) fn add_limit(&mut self, bytes_each: usize) {
        let keys = 0;
        self.of_limits.push(Taken { keys, bytes_each });
        self.own = self.max / 2 / self.of_limits.len();
        let beyond = self.of_limits.iter();
        self.beyond = beyond.map(|it| it.keys.saturating_sub(self.own)).sum();
    }

    /// Keys of a limit take so much from now on.
    pub(crate) fn change_limit(&mut self, limit: LimitId, bytes_each: usize) {
        let of = &mut self.of_limits[limit.index()];
        self.bytes = self.bytes - of.keys * of.bytes_each + of.keys * bytes_each;
        of.bytes_each = bytes_each;
    }

    pub(crate) fn is_beyond_bytes(&self) -> bool {
        self.bytes > self.bytes_max
    }

    /// Whether one can be inserted, whatever is shared out.
    pub(crate) fn has_place(&self, limit: LimitId) -> bool {
        let bytes = self.of_limits[limit.index()].bytes_each;
        self.len() < self.max && (bytes == 0 || self.bytes.saturating_add(bytes) <= self.bytes_max)
    }

    /// Whether one can be inserted of each of these limits.
    fn has_room(&self, wanted: impl Iterator<Item = LimitId>) -> bool {
        let (mut length, mut beyond, mut added) = (self.len(), self.beyond, 0_usize);
        for limit in wanted {
            let of = &self.of_limits[limit.index()];
            length += 1;
            added = added.saturating_add(of.bytes_each);
            if of.keys >= self.own {
                beyond += 1;
                if beyond + self.own * self.of_limits.len() > self.max {
                    return false;
                }
            }
        }
        // Bookings may take all bytes; a key that needs none has its place all the same.
        length <= self.max && (added == 0 || self.bytes.saturating_add(added) <= self.bytes_max)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Those of one limit.
    pub(crate) fn len_of(&self, limit: LimitId) -> usize {
        self.of_limits[limit.index()].keys
    }

    /// Where keys may be, from 0 on.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn find(&self, limit: LimitId, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one((limit, key));
        let entries = &self.entries;
        let is_it = |place: &u32| {
            let entry = &entries[*place as usize];
            entry.limit == limit && entry.key.as_ref() == Some(key)
        };
        self.table.find(hash, is_it).copied()
    }

    #[inline]
    pub(crate) fn state(&self, place: u32) -> &KeyState {
        &self.entries[place as usize].state
    }

    #[inline]
    pub(crate) fn update(&mut self, place: u32, change: impl FnOnce(&mut KeyState)) {
        let state = self.state_mut(place);
        let booked = state.booked_bytes();
        change(state);
        let now = state.booked_bytes();
        self.bytes = self.bytes - booked + now;
    }

    /// To be changed without what it [has](Self::update) of bookings.
    #[inline]
    pub(crate) fn state_mut(&mut self, place: u32) -> &mut KeyState {
        let entry = &mut self.entries[place as usize];
        entry.was_used = true;
        if self.changes.are_tracked && !entry.is_changed {
            entry.is_changed = true;
            self.changes.changed.push(place);
        }
        &mut entry.state
    }

    /// Changes the states of those of some limits.
    pub(crate) fn each_of(
        &mut self,
        is_of: impl Fn(LimitId) -> bool,
        mut change: impl FnMut(LimitId, &mut KeyState),
    ) {
        for index in 0..self.entries.len() {
            let Entry { key, limit, .. } = &self.entries[index];
            if key.is_some() && is_of(*limit) {
                let (place, limit) = (u32::try_from(index), *limit);
                let place = place.expect("less than 2^32 entries");
                self.update(place, |state| change(limit, state));
            }
        }
    }

    /// Sees to it that one can be inserted of each of these limits; those that are `kept` stay.
    pub(crate) fn make_room(
        &mut self,
        wanted: impl Iterator<Item = LimitId> + Clone,
        kept: &[Option<u32>],
        is_idle: impl Fn(LimitId, &KeyState) -> bool,
    ) -> Result<(), TableFull> {
        let is_idle =
            |place, limit, state: &KeyState| !kept.contains(&Some(place)) && is_idle(limit, state);
        // So that idle ones leave as new ones come, and seldom any has to be looked for.
        if self.free.len() < wanted.clone().count() && self.entries.len() >= FEW {
            self.look(LOOKED_AT, true, &is_idle);
        }
        if self.has_room(wanted.clone()) {
            return Ok(());
        }
        self.look(LOOKED_AT_WHEN_FULL, false, &is_idle);
        if self.has_room(wanted) {
            Ok(())
        } else {
            Err(TableFull)
        }
    }

    pub(crate) fn evict_idle(
        &mut self,
        looked_at: usize,
        is_idle: impl Fn(LimitId, &KeyState) -> bool,
    ) -> usize {
        self.look(looked_at, false, &|_, limit, state: &KeyState| {
            is_idle(limit, state)
        })
    }

    /// Looks at so many entries, and forgets those that are idle, unless they were used since the last look and such are
    /// `spared`: a key that comes back all the time is not made anew each time. Returns how many that were.
    fn look(
        &mut self,
        looked_at: usize,
        spared: bool,
        is_idle: &impl Fn(u32, LimitId, &KeyState) -> bool,
    ) -> usize {
        let mut forgotten = 0;
        for _ in 0..looked_at.min(self.entries.len()) {
            self.hand = (self.hand + 1) % self.entries.len();
            let place = u32::try_from(self.hand).expect("less than 2^32 entries");
            let entry = &mut self.entries[self.hand];
            let was_used = std::mem::take(&mut entry.was_used);
            let is_spared = spared && was_used;
            if !is_spared && entry.key.is_some() && is_idle(place, entry.limit, &entry.state) {
                self.remove(place);
                forgotten += 1;
            }
        }
        forgotten
    }

    fn remove(&mut self, place: u32) {
        let entry = &mut self.entries[place as usize];
        if let Some(key) = entry.key.take() {
            let hash = self.hasher.hash_one((entry.limit, &key));
            if let Ok(found) = self.table.find_entry(hash, |it| *it == place) {
                found.remove();
            }
            let state = std::mem::replace(&mut entry.state, KeyState::none());
            if self.changes.are_tracked {
                self.changes.forgotten.push((entry.limit, key));
            }
            let of = &mut self.of_limits[entry.limit.index()];
            of.keys -= 1;
            self.beyond -= usize::from(of.keys >= self.own);
            self.bytes -= of.bytes_each + state.booked_bytes();
            self.free.push(place);
        }
    }

    /// Inserts what is not there, for which there is room.
    pub(crate) fn insert(&mut self, limit: LimitId, key: K, state: KeyState) -> u32 {
        let of = &mut self.of_limits[limit.index()];
        self.beyond += usize::from(of.keys >= self.own);
        of.keys += 1;
        self.bytes += of.bytes_each + state.booked_bytes();
        let hash = self.hasher.hash_one((limit, &key));
        let entry = Entry {
            key: Some(key),
            limit,
            was_used: true,
            is_changed: false,
            state,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("less than 2^32 entries")
            }
        };
        let (entries, hasher) = (&self.entries, &self.hasher);
        let rehash = |place: &u32| {
            let entry = &entries[*place as usize];
            hasher.hash_one((entry.limit, entry.key.as_ref().expect("it is in the table")))
        };
        self.table.insert_unique(hash, place, rehash);
        place
    }
}
