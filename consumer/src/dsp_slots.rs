//! DSP slots: which DSPs may have cookies in the store. Does no I/O.
//!
//! A client can send any DSP id, and each stored DSP costs every node a database. So only DSPs that the operator lists always
//! have a slot. An unlisted DSP gets a slot with its first cookie, up to a maximum number, and keeps it; cookies of any other
//! DSP are rejected. DSPs in the store at startup have a slot even beyond the maximum. Only the operator can free a slot, by
//! rejecting its DSP.
//!
//! A cookie costs one comparison in a direct-mapped cache, and set lookups on a miss.

use std::collections::BTreeSet;

use proto::units::DspId;

/// Entries of the cache of recent DSPs; a power of two.
const CACHE_ENTRIES: usize = 1024;

/// The slots of one store.
#[derive(Debug)]
pub struct DspSlots {
    listed: BTreeSet<DspId>,
    unlisted_max: usize,
    rejected: BTreeSet<DspId>,
    unlisted: BTreeSet<DspId>,
    /// DSPs with a slot; 0 for an empty entry.
    cache: Box<[DspId]>,
}

impl DspSlots {
    /// Slots for the `listed` DSPs and up to `unlisted_max` others.
    pub fn new(listed: BTreeSet<DspId>, unlisted_max: usize) -> Self {
        Self {
            listed,
            unlisted_max,
            rejected: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            cache: vec![DspId::NONE; CACHE_ENTRIES].into(),
        }
    }

    /// Adds the DSPs in the store.
    pub fn load(&mut self, stored: &[DspId]) {
        let stored = stored
            .iter()
            .filter(|dsp_id| !self.listed.contains(dsp_id) && !self.rejected.contains(dsp_id));
        self.unlisted.extend(stored);
    }

    /// Replaces the set of rejected DSPs and frees their slots. Returns whether the set differs from the previous one.
    pub fn set_rejected(&mut self, rejected: &BTreeSet<DspId>) -> bool {
        let differs = self.rejected != *rejected;
        if differs {
            self.cache.fill(DspId::NONE);
            self.unlisted.retain(|dsp_id| !rejected.contains(dsp_id));
            self.rejected.clone_from(rejected);
        }
        differs
    }

    /// Whether a DSP has a slot. An unlisted DSP may get one now.
    pub fn admits(&mut self, dsp_id: DspId) -> bool {
        self.cache[dsp_id.0 as usize % CACHE_ENTRIES] == dsp_id || self.admits_uncached(dsp_id)
    }

    #[cold]
    fn admits_uncached(&mut self, dsp_id: DspId) -> bool {
        if self.rejected.contains(&dsp_id) {
            return false;
        }
        if !self.listed.contains(&dsp_id) && !self.unlisted.contains(&dsp_id) {
            if self.unlisted.len() >= self.unlisted_max {
                return false;
            }
            self.unlisted.insert(dsp_id);
        }
        self.cache[dsp_id.0 as usize % CACHE_ENTRIES] = dsp_id;
        true
    }

    /// The number of unlisted DSPs with a slot, and its maximum.
    pub fn unlisted(&self) -> (usize, usize) {
        (self.unlisted.len(), self.unlisted_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(listed: &[u32], unlisted_max: usize) -> DspSlots {
        DspSlots::new(listed.iter().copied().map(DspId).collect(), unlisted_max)
    }

    #[test]
    fn listed_and_stored_dsps_have_slots_and_others_up_to_the_maximum() {
        let mut slots = slots(&[1, 2], 2);
        slots.load(&[7, 2].map(DspId));
        assert!([1, 2, 7, 8].iter().all(|dsp| slots.admits(DspId(*dsp))));
        assert!(!slots.admits(DspId(9)) && !slots.admits(DspId(9 + 1024)));
        assert!(!slots.admits(DspId(1 + 1024)) && slots.admits(DspId(8)));
        assert_eq!(slots.unlisted(), (2, 2));
        let stored: Vec<_> = (100..200).map(DspId).collect();
        slots.load(&stored);
        assert!(slots.admits(DspId(150)) && !slots.admits(DspId(9)));
        assert_eq!(slots.unlisted(), (102, 2));
    }

    #[test]
    fn rejecting_a_dsp_frees_its_slot() {
        let mut slots = slots(&[1], 1);
        slots.set_rejected(&[DspId(9)].into());
        slots.load(&[7, 9].map(DspId));
        assert!(slots.admits(DspId(7)) && !slots.admits(DspId(8)) && !slots.admits(DspId(9)));
        slots.set_rejected(&[DspId(7)].into());
        assert!(!slots.admits(DspId(7)) && slots.admits(DspId(8)) && slots.admits(DspId(1)));
        slots.set_rejected(&BTreeSet::new());
        assert!(!slots.admits(DspId(7)) && slots.admits(DspId(8)));
    }
}
