//! How much was answered that no snapshot on the disk has.
//!
//! Answers belong to an *epoch*, which ends when a snapshot begins. A snapshot has all of the epochs before it began, and may have
//! some of the one that goes on. One is made at a time, so answers of two epochs at most are not saved: of this one, and
//! of the one that the snapshot in progress will save.

use std::{collections::HashMap, sync::Arc};

/// A limit's place, and a counter.
pub(super) type Counter = (u32, Arc<str>);

type Counts = HashMap<Counter, u64, foldhash::fast::RandomState>;

/// What was answered before it was saved.
#[derive(Debug, Default)]
pub(super) struct Unsaved {
    /// The number of the snapshot that began last, and of the epoch that goes on since.
    epoch: u64,
    now: Counts,
    before: Counts,
    /// Of each place, how much of a counter may be unsaved: what both the newest snapshot on the disk and the one in progress charge for.
    caps: Vec<u64>,
    /// Most counters of both epochs: beyond these, answers wait.
    counters_max: usize,
    /// Whether all answers wait until this epoch is saved, and until the one before it is.
    all_wait: bool,
    all_waited: bool,
    /// Nothing is ever saved, nor owed.
    is_off: bool,
}

impl Unsaved {
    /// Nothing is saved yet.
    pub(super) fn new(counters_max: usize) -> Self {
        Self {
            counters_max,
            ..Self::default()
        }
    }

    /// Where nothing is saved, all may be answered at once.
    pub(super) fn off() -> Self {
        Self {
            is_off: true,
            ..Self::default()
        }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of the snapshot that will have what is answered now.
    pub(super) fn saved_by(&self) -> u64 {
        if self.is_off { 0 } else { self.epoch + 1 }
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Whether an answer for so many requests of these counters may be given before it is saved.
    pub(super) fn fits(&self, of: &[Counter], requests: u64) -> bool {
        if self.is_off {
            return true;
        }
        let known = self.now.len() + self.before.len();
        let is_full = known + of.len() > self.counters_max && {
            let new = of.iter().filter(|it| !self.now.contains_key(*it));
            known + new.count() > self.counters_max
        };
        if is_full || self.all_wait || self.all_waited {
            return false;
        }
        let unsaved = |counter: &Counter| {
            let [now, before] = [&self.now, &self.before].map(|it| it.get(counter).copied());
            now.unwrap_or(0).saturating_add(before.unwrap_or(0))
        };
        let fits = |counter: &Counter| {
            let cap = self.caps.get(counter.0 as usize).copied().unwrap_or(0);
            unsaved(counter).saturating_add(requests) <= cap
        };
        of.iter().all(fits)
    }

    /// Counts an answer for so many requests of these counters, if it [fits](Self::fits).
    pub(super) fn may_answer(&mut self, of: &[Counter], requests: u64) -> bool {
        if !self.fits(of, requests) {
            return false;
        }
        if self.is_off {
            return true;
        }
        for counter in of {
            match self.now.get_mut(counter) {
                Some(count) => *count += requests,
                None => drop(self.now.insert(counter.clone(), requests)),
            }
        }
        true
    }

    /// Lets all further answers of a counter wait until the epoch is saved.
    pub(super) fn hold(&mut self, counter: Counter) {
        if self.now.len() + self.before.len() < self.counters_max {
            self.now.insert(counter, u64::MAX);
        } else {
            self.all_wait = true;
        }
    }

    /// A snapshot begins, or begins again after it came to nothing.
    pub(super) fn begin(&mut self, is_new: bool) {
        if is_new {
            self.epoch += 1;
            self.before = std::mem::take(&mut self.now);
            self.all_waited = std::mem::take(&mut self.all_wait);
        }
    }

    /// The snapshot that began last is on the disk, and charges each place for so much.
    pub(super) fn saved(&mut self, charges: &[u64], worth: impl Fn(usize) -> u64) {
        self.before.clear();
        self.all_waited = false;
        let caps = charges.iter().enumerate();
        self.caps = caps
            .map(|(place, charge)| worth(place).min(*charge))
            .collect();
    }

    /// Limits have changed: no counter is owed more than it may be from now on.
    pub(super) fn lower(&mut self, worth: impl Fn(usize) -> u64) {
        for (place, cap) in self.caps.iter_mut().enumerate() {
            *cap = worth(place).min(*cap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str) -> Counter {
        (0, Arc::from(name))
    }

    #[test]
    fn no_counter_is_owed_more_than_the_snapshot_on_the_disk_charges_for() {
        let mut unsaved = Unsaved::new(100);
        let of = [counter("a")];
        let other = [counter("b")];
        // Nothing is on the disk yet.
        assert!(!unsaved.may_answer(&of, 1));
        unsaved.begin(true);
        assert!(!unsaved.may_answer(&of, 1));
        unsaved.saved(&[3], |_| 3);
        assert!(unsaved.may_answer(&of, 2));
        assert!(!unsaved.may_answer(&of, 2));
        assert_eq!(unsaved.saved_by(), 2);
        unsaved.begin(true);
        // What the snapshot in progress has is not on the disk.
        assert!(unsaved.may_answer(&of, 1) && !unsaved.may_answer(&of, 1));
        assert!(unsaved.may_answer(&other, 3));
        // It fails, and is tried again.
        unsaved.begin(false);
        assert!(!unsaved.may_answer(&of, 1));
        unsaved.saved(&[3], |_| 3);
        // One came after it had begun.
        assert!(unsaved.may_answer(&of, 2) && !unsaved.may_answer(&of, 1));
        assert!(!unsaved.may_answer(&other, 1));
    }

    #[test]
    fn changed_worth_counts_when_it_is_lower_at_once_and_higher_when_it_is_saved() {
        let mut unsaved = Unsaved::new(100);
        let of = [counter("a")];
        unsaved.begin(true);
        unsaved.saved(&[3], |_| 3);
        unsaved.lower(|_| 9);
        assert!(unsaved.may_answer(&of, 3) && !unsaved.may_answer(&of, 1));
        unsaved.lower(|_| 1);
        unsaved.begin(true);
        unsaved.saved(&[9], |_| 1);
        assert!(unsaved.may_answer(&of, 1) && !unsaved.may_answer(&of, 1));
        unsaved.begin(true);
        unsaved.saved(&[9], |_| 9);
        assert!(unsaved.may_answer(&of, 9));
        // All counters of a call, or none.
        assert!(!unsaved.may_answer(&[counter("c"), counter("a")], 1));
        assert!(unsaved.may_answer(&[counter("c")], 9));
        assert!(Unsaved::off().may_answer(&of, u64::MAX));
    }

    #[test]
    fn held_counters_and_too_many_wait_for_the_snapshot_that_has_them() {
        let mut unsaved = Unsaved::new(2);
        let [a, b, c] = ["a", "b", "c"].map(|name| [counter(name)]);
        let save = |unsaved: &mut Unsaved| {
            unsaved.begin(true);
            unsaved.saved(&[3], |_| 3);
        };
        save(&mut unsaved);
        unsaved.hold(counter("a"));
        assert!(!unsaved.may_answer(&a, 1) && unsaved.may_answer(&b, 1));
        assert!(unsaved.may_answer(&b, 1) && !unsaved.may_answer(&c, 1));
        unsaved.begin(true);
        assert!(!unsaved.may_answer(&a, 1) && !unsaved.may_answer(&c, 1));
        unsaved.saved(&[3], |_| 3);
        assert!(unsaved.may_answer(&a, 1) && unsaved.may_answer(&b, 1));
        // There is no room to know which.
        unsaved.hold(counter("c"));
        assert!(!unsaved.may_answer(&a, 1));
        unsaved.begin(true);
        assert!(!unsaved.may_answer(&b, 1));
        unsaved.saved(&[3], |_| 3);
        assert!(unsaved.may_answer(&c, 1));
        save(&mut unsaved);
        assert!(unsaved.may_answer(&c, 3));
    }
}
