//! What is kept for each key of each limit: a bounded table, whose idle entries make room for new ones.

use std::{
    hash::{BuildHasher, Hash},
    mem::size_of,
};

use hashbrown::HashTable;

use crate::{decision::LimitId, meter::State};

/// Keys that were idle are looked for at each new key: so many of those there are.
const LOOKED_AT: usize = 2;

/// The same when there is no room left.
const LOOKED_AT_WHEN_FULL: usize = 256;

/// Of no more entries, none is forgotten to make room.
const FEW: usize = 1_024;

/// All entries are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

#[derive(Debug)]
pub(crate) struct Keys<K, S> {
    /// Places of entries, by limit and key. With a seed of its own: keys may be chosen by strangers.
    table: HashTable<u32>,
    entries: Vec<Entry<K>>,
    /// Places of entries that are free.
    free: Vec<u32>,
    max: usize,
    hasher: S,
    /// Where the next idle entries are looked for.
    hand: usize,
}

#[derive(Debug)]
struct Entry<K> {
    key: Option<K>,
    limit: LimitId,
    /// Whether it was taken from since it was last looked at.
    was_used: bool,
    state: State,
}

impl<K: Hash + Eq, S: BuildHasher + Default> Keys<K, S> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            table: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            max: max.min(u32::MAX as usize),
            hasher: S::default(),
            hand: 0,
        }
    }
}

impl<K: Hash + Eq, S: BuildHasher> Keys<K, S> {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<K>>()
            + self.table.allocation_size()
            + self.free.capacity() * size_of::<u32>()
            + self
                .entries
                .iter()
                .map(|entry| entry.state.heap_bytes())
                .sum::<usize>()
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
    pub(crate) fn state(&self, place: u32) -> &State {
        &self.entries[place as usize].state
    }

    #[inline]
    pub(crate) fn state_mut(&mut self, place: u32) -> &mut State {
        let entry = &mut self.entries[place as usize];
        entry.was_used = true;
        &mut entry.state
    }

    pub(crate) fn each_of(&mut self, limit: LimitId, mut change: impl FnMut(&mut State)) {
        let of_limit = |entry: &&mut Entry<K>| entry.limit == limit && entry.key.is_some();
        for entry in self.entries.iter_mut().filter(of_limit) {
            change(&mut entry.state);
        }
    }

    /// Sees to it that so many can be inserted; those that are `kept` stay.
    pub(crate) fn make_room(
        &mut self,
        wanted: usize,
        kept: &[Option<u32>],
        is_idle: impl Fn(LimitId, &State) -> bool,
    ) -> Result<(), NoRoom> {
        let is_idle =
            |place, limit, state: &State| !kept.contains(&Some(place)) && is_idle(limit, state);
        // So that idle ones leave as new ones come, and seldom any has to be looked for.
        if self.free.len() < wanted && self.entries.len() >= FEW {
            self.look(LOOKED_AT, true, &is_idle);
        }
        let has_room = |keys: &Self| keys.len() + wanted <= keys.max;
        if !has_room(self) {
            self.look(LOOKED_AT_WHEN_FULL, false, &is_idle);
        }
        if has_room(self) { Ok(()) } else { Err(NoRoom) }
    }

    pub(crate) fn forget_idle(
        &mut self,
        looked_at: usize,
        is_idle: impl Fn(LimitId, &State) -> bool,
    ) -> usize {
        self.look(looked_at, false, &|_, limit, state: &State| {
            is_idle(limit, state)
        })
    }

    /// Looks at so many entries, and forgets those that are idle, unless they were used since the last look and such are
    /// `spared`: a key that comes back all the time is not made anew each time. Returns how many that were.
    fn look(
        &mut self,
        looked_at: usize,
        spared: bool,
        is_idle: &impl Fn(u32, LimitId, &State) -> bool,
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
            entry.state = State::none();
            self.free.push(place);
        }
    }

    /// Inserts what is not there, for which there is room.
    pub(crate) fn insert(&mut self, limit: LimitId, key: K, state: State) -> u32 {
        let hash = self.hasher.hash_one((limit, &key));
        let entry = Entry {
            key: Some(key),
            limit,
            was_used: true,
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
