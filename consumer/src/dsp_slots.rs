//! Which DSPs have a slot in the store: those that the operator lists, and a bounded number of others. Pure.
//!
//! Anybody can name a DSP at the edge, and each that is stored costs every node a database, or a part of every user's
//! entry. So a DSP that is not listed gets a slot with its first cookie while fewer than the maximum have one, and keeps it;
//! cookies of further DSPs are refused. DSPs that the store holds at the start have a slot, beyond the maximum too. Only the
//! operator frees a slot, by refusing its DSP.
//!
//! Cost of a cookie: one comparison in a table of a thousand DSPs. Only what is not found there is looked up.

use std::collections::BTreeSet;

/// Entries of the table of DSPs seen last; a power of two.
const CACHE_ENTRIES: usize = 1024;

/// The slots of one store.
#[derive(Debug)]
pub struct DspSlots {
    listed: BTreeSet<u32>,
    unlisted_max: usize,
    refused: BTreeSet<u32>,
    unlisted: BTreeSet<u32>,
    /// DSPs that have a slot; 0 for none.
    cache: Box<[u32]>,
}

impl DspSlots {
    /// Slots for DSPs that are `listed`, and `unlisted_max` others.
    #[must_use]
    pub fn new(listed: BTreeSet<u32>, unlisted_max: usize) -> Self {
        Self {
            listed,
            unlisted_max,
            refused: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            cache: vec![0; CACHE_ENTRIES].into(),
        }
    }

    /// Gives slots to the DSPs that the store holds.
    pub fn load(&mut self, held: &[u32]) {
        let held = held
            .iter()
            .filter(|dsp_id| !self.listed.contains(dsp_id) && !self.refused.contains(dsp_id));
        self.unlisted.extend(held);
    }

    /// Refuses these DSPs from now on, and no others.
    pub fn refuse(&mut self, refused: BTreeSet<u32>) {
        self.cache.fill(0);
        self.unlisted.retain(|dsp_id| !refused.contains(dsp_id));
        self.refused = refused;
    }

    /// Whether a DSP has a slot, or gets one now.
    pub fn admits(&mut self, dsp_id: u32) -> bool {
        self.cache[dsp_id as usize % CACHE_ENTRIES] == dsp_id || self.admits_other(dsp_id)
    }

    #[cold]
    fn admits_other(&mut self, dsp_id: u32) -> bool {
        if self.refused.contains(&dsp_id) {
            return false;
        }
        if !self.listed.contains(&dsp_id) && !self.unlisted.contains(&dsp_id) {
            if self.unlisted.len() >= self.unlisted_max {
                return false;
            }
            self.unlisted.insert(dsp_id);
        }
        self.cache[dsp_id as usize % CACHE_ENTRIES] = dsp_id;
        true
    }

    /// How many unlisted DSPs have a slot, and the maximum.
    #[must_use]
    pub fn taken(&self) -> (usize, usize) {
        (self.unlisted.len(), self.unlisted_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(listed: &[u32], unlisted_max: usize) -> DspSlots {
        DspSlots::new(listed.iter().copied().collect(), unlisted_max)
    }

    #[test]
    fn listed_and_held_have_a_slot_and_others_while_there_are_some() {
        let mut slots = slots(&[1, 2], 2);
        slots.load(&[7, 2]);
        assert!([1, 2, 7, 8].iter().all(|dsp| slots.admits(*dsp)));
        assert!(!slots.admits(9) && !slots.admits(9 + 1024));
        assert!(!slots.admits(1 + 1024) && slots.admits(8));
        assert_eq!(slots.taken(), (2, 2));
        let held: Vec<_> = (100..200).collect();
        slots.load(&held);
        assert!(slots.admits(150) && !slots.admits(9));
        assert_eq!(slots.taken(), (102, 2));
    }

    #[test]
    fn refused_have_no_slot_and_leave_theirs() {
        let mut slots = slots(&[1], 1);
        slots.refuse([9].into());
        slots.load(&[7, 9]);
        assert!(slots.admits(7) && !slots.admits(8) && !slots.admits(9));
        slots.refuse([7].into());
        assert!(!slots.admits(7) && slots.admits(8) && slots.admits(1));
        slots.refuse(BTreeSet::new());
        assert!(!slots.admits(7) && slots.admits(8));
    }
}
