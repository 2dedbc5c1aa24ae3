//! Which DSPs have a slot in the store: those that the operator lists, and a bounded number of others. Pure.
//!
//! Anybody can name a DSP at the edge, and each that is stored costs every node a database, or a part of every user's
//! entry. So a DSP that is not listed gets a slot by being seen, as long as there are some; its cookies are refused when
//! there are none. What the store holds at the start has its slot, beyond the bound too. A slot is free again when the
//! newest cookie of its DSP has expired, or when the operator refuses that DSP.
//!
//! Cost of a cookie: one comparison in a table of a thousand DSPs. Only what is not found there is looked up.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::ttl::Ttls;

/// Entries of the table of those seen last; a power of two.
const CACHE_ENTRIES: usize = 1024;

/// How often it is looked for slots that are free again, by the time of cookies.
const FREED_INTERVAL_MICROS: u64 = 1_000_000;

/// The part of its time to live by which a DSP's newest time may be ahead of what is recorded.
const RECORDED_PART: u32 = 64;

/// A DSP, and when its newest cookie was accepted, in microseconds since the Unix epoch.
pub type DspSlot = (u32, u64);

/// The slots of one store.
#[derive(Debug)]
pub struct DspSlots {
    listed: BTreeSet<u32>,
    seen_max: usize,
    ttls: Ttls,
    refused: BTreeSet<u32>,
    /// Those that are not listed.
    seen: BTreeMap<u32, Seen>,
    cache: Box<[CacheEntry]>,
    looked_at: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    newest: u64,
    recorded: u64,
}

/// A DSP that has a slot, 0 for none, and the newest time since it is here.
#[derive(Debug, Clone, Copy, Default)]
struct CacheEntry {
    dsp_id: u32,
    newest: u64,
}

impl DspSlots {
    /// Slots for those that are `listed`, and `seen_max` others.
    #[must_use]
    pub fn new(listed: BTreeSet<u32>, seen_max: usize, ttls: Ttls) -> Self {
        Self {
            listed,
            seen_max,
            ttls,
            refused: BTreeSet::new(),
            seen: BTreeMap::new(),
            cache: vec![CacheEntry::default(); CACHE_ENTRIES].into(),
            looked_at: 0,
        }
    }

    /// Takes in what the store holds.
    pub fn load(&mut self, held: &[DspSlot]) {
        for &(dsp_id, newest) in held {
            if !self.listed.contains(&dsp_id) && !self.refused.contains(&dsp_id) {
                let recorded = newest;
                self.seen.insert(dsp_id, Seen { newest, recorded });
            }
        }
    }

    /// Has only these DSPs refused from now on, whether there are slots or not.
    pub fn refuse(&mut self, refused: BTreeSet<u32>) {
        self.note_all();
        self.cache.fill(CacheEntry::default());
        self.seen.retain(|dsp_id, _| !refused.contains(dsp_id));
        self.refused = refused;
    }

    /// Whether a DSP has a slot, or gets one now, for a cookie accepted at `accepted`.
    pub fn admits(&mut self, dsp_id: u32, accepted: u64) -> bool {
        let entry = &mut self.cache[dsp_id as usize % CACHE_ENTRIES];
        if entry.dsp_id == dsp_id {
            entry.newest = entry.newest.max(accepted);
            return true;
        }
        self.admits_other(dsp_id, accepted)
    }

    #[cold]
    fn admits_other(&mut self, dsp_id: u32, accepted: u64) -> bool {
        if self.refused.contains(&dsp_id) {
            return false;
        }
        let is_known = self.listed.contains(&dsp_id) || self.seen.contains_key(&dsp_id);
        if !is_known {
            if self.seen.len() >= self.seen_max {
                self.free(accepted);
            }
            if self.seen.len() >= self.seen_max {
                return false;
            }
            self.seen.insert(dsp_id, Seen::default());
        }
        let entry = &mut self.cache[dsp_id as usize % CACHE_ENTRIES];
        let before = std::mem::replace(
            entry,
            CacheEntry {
                dsp_id,
                newest: accepted,
            },
        );
        self.note(before);
        true
    }

    /// Frees slots whose DSPs' cookies have all expired at `now`; looks once a second at most.
    pub fn free(&mut self, now: u64) {
        if now < self.looked_at.saturating_add(FREED_INTERVAL_MICROS) {
            return;
        }
        self.looked_at = now;
        self.note_all();
        let ttls = &self.ttls;
        self.seen
            .retain(|dsp_id, seen| seen.newest >= ttls.expired_before(*dsp_id, now));
        for entry in &mut self.cache {
            if !self.listed.contains(&entry.dsp_id) && !self.seen.contains_key(&entry.dsp_id) {
                *entry = CacheEntry::default();
            }
        }
    }

    fn note(&mut self, entry: CacheEntry) {
        if let Some(seen) = self.seen.get_mut(&entry.dsp_id) {
            seen.newest = seen.newest.max(entry.newest);
        }
    }

    fn note_all(&mut self) {
        for at in 0..CACHE_ENTRIES {
            self.note(self.cache[at]);
        }
    }

    /// What is to be recorded in the store: DSPs that got a slot, or whose newest time has moved on by a part of their time
    /// to live. Said once.
    pub fn to_record(&mut self) -> Vec<DspSlot> {
        self.note_all();
        let mut records = Vec::new();
        for (&dsp_id, seen) in &mut self.seen {
            let part = self.ttls.of(dsp_id) / RECORDED_PART;
            let part = u64::try_from(part.as_micros()).unwrap_or(u64::MAX);
            if seen.newest > seen.recorded.saturating_add(part) {
                seen.recorded = seen.newest;
                records.push((dsp_id, seen.newest));
            }
        }
        records
    }

    /// Slots that are taken by DSPs that are not listed, and how many there are.
    #[must_use]
    pub fn taken(&self) -> (usize, usize) {
        (self.seen.len(), self.seen_max)
    }
}

/// How many DSPs' cookies a lookup tells of, whatever the store holds.
#[derive(Debug, Clone)]
pub struct LookupBound {
    /// DSPs that it always tells of.
    pub listed: BTreeSet<u32>,
    /// Most others: those whose newest cookie is newest.
    pub others_max: usize,
}

impl LookupBound {
    /// Everything.
    #[must_use]
    pub fn none() -> Self {
        Self {
            listed: BTreeSet::new(),
            others_max: usize::MAX,
        }
    }

    /// Those of `held` that it does not tell of.
    #[must_use]
    pub fn beyond(&self, held: impl Iterator<Item = DspSlot>) -> BTreeSet<u32> {
        let mut others: Vec<DspSlot> = held
            .filter(|(dsp_id, _)| !self.listed.contains(dsp_id))
            .collect();
        if others.len() <= self.others_max {
            return BTreeSet::new();
        }
        others.sort_unstable_by_key(|&(_, newest)| Reverse(newest));
        let beyond = others.split_off(self.others_max);
        beyond.into_iter().map(|(dsp_id, _)| dsp_id).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: u64 = 86_400_000_000;

    fn slots(listed: &[u32], seen_max: usize) -> DspSlots {
        let ttls = Ttls::new(Duration::from_secs(86_400), BTreeMap::new());
        DspSlots::new(listed.iter().copied().collect(), seen_max, ttls)
    }

    #[test]
    fn listed_and_held_have_a_slot_and_others_while_there_are_some() {
        let mut slots = slots(&[1, 2], 2);
        slots.load(&[(7, 10), (2, 10)]);
        assert!([1, 2, 7, 8].iter().all(|dsp| slots.admits(*dsp, 20)));
        assert!(!slots.admits(9, 20) && !slots.admits(9 + 1024, 20));
        assert!(!slots.admits(1 + 1024, 20) && slots.admits(8, 20));
        assert_eq!(slots.taken(), (2, 2));
        let held: Vec<_> = (100..200).map(|dsp_id| (dsp_id, 10)).collect();
        slots.load(&held);
        assert!(slots.admits(150, 20) && !slots.admits(9, 20));
        assert_eq!(slots.taken(), (102, 2));
    }

    #[test]
    fn slot_is_free_again_when_its_newest_cookie_has_expired() {
        let mut slots = slots(&[], 1);
        assert!(slots.admits(7, DAY) && slots.admits(7, 2 * DAY));
        assert!(!slots.admits(8, 3 * DAY));
        assert!(slots.admits(8, 3 * DAY + 2_000_000));
        assert!(!slots.admits(7, 3 * DAY + 2_000_001));
    }

    #[test]
    fn refused_have_no_slot_and_leave_theirs() {
        let mut slots = slots(&[1], 1);
        slots.refuse([9].into());
        slots.load(&[(7, DAY), (9, DAY)]);
        assert!(slots.admits(7, DAY) && !slots.admits(8, DAY) && !slots.admits(9, DAY));
        slots.refuse([7].into());
        assert!(!slots.admits(7, DAY) && slots.admits(8, DAY) && slots.admits(1, DAY));
        slots.refuse(BTreeSet::new());
        assert!(!slots.admits(7, DAY) && slots.admits(8, DAY));
        assert_eq!(slots.to_record(), [(8, DAY)]);
    }

    #[test]
    fn lookup_tells_of_those_listed_and_of_the_newest_others() {
        let bound = LookupBound {
            listed: [1, 2].into(),
            others_max: 2,
        };
        let held = [(1, 0), (5, 30), (6, 10), (7, 20)];
        assert_eq!(bound.beyond(held.into_iter()), [6].into());
        assert!(bound.beyond(held.into_iter().take(3)).is_empty());
        assert!(LookupBound::none().beyond(held.into_iter()).is_empty());
    }

    #[test]
    fn newest_time_is_recorded_when_it_is_new_and_then_now_and_then() {
        let mut slots = slots(&[1], 10);
        slots.load(&[(7, DAY)]);
        assert!(slots.admits(1, DAY) && slots.admits(7, DAY + 5) && slots.admits(8, DAY));
        assert_eq!(slots.to_record(), [(8, DAY)]);
        assert_eq!(slots.to_record(), []);
        assert!(slots.admits(8, 2 * DAY) && slots.admits(8 + 1024, 2 * DAY));
        assert_eq!(slots.to_record(), [(8, 2 * DAY), (8 + 1024, 2 * DAY)]);
    }
}
