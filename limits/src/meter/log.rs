//! The sliding log: the moment of each call, until it has left the window.

use std::time::Duration;

use crate::saved::{Damaged, Reader, Writer};

#[derive(Debug, Clone)]
pub(crate) struct Log {
    limit: usize,
    window: u64,
}

/// The latest moments, oldest first, in a ring that is made once.
#[derive(Debug, Clone)]
pub(crate) struct Logged {
    ring: Box<[u64]>,
    first: usize,
    length: usize,
    /// The latest that is not kept any more.
    gone: u64,
}

impl Logged {
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ring)
    }

    pub(crate) fn save(&self, out: &mut Writer<'_>) {
        out.number(self.gone).number(self.length as u64);
        let mut before = 0;
        for index in 0..self.length {
            let at = self.get(index);
            // They rise, but for stand-ins.
            out.number(at.wrapping_sub(before));
            before = at;
        }
    }

    fn get(&self, index: usize) -> u64 {
        self.ring[(self.first + index) % self.ring.len()]
    }

    /// Appends one; the oldest goes when there is no room.
    fn push(&mut self, at: u64) {
        if self.length == self.ring.len() {
            self.shift();
        }
        let index = (self.first + self.length) % self.ring.len();
        self.ring[index] = at;
        self.length += 1;
    }

    fn shift(&mut self) {
        self.gone = self.get(0);
        self.first = (self.first + 1) % self.ring.len();
        self.length -= 1;
    }

    /// The first entry that is later than `at`.
    fn later_than(&self, at: u64) -> usize {
        let (mut low, mut high) = (0, self.length);
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.get(middle) <= at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(crate) fn last(&self) -> u64 {
        match self.length {
            0 => 0,
            length => self.get(length - 1),
        }
    }
}

impl Log {
    pub(crate) fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit: usize::try_from(limit).expect("a checked limit"),
            window: u64::try_from(window.as_nanos()).expect("a checked time"),
        }
    }

    pub(crate) fn has_windows_of(&self, other: &Self) -> bool {
        self.window == other.window
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn fresh(&self) -> Logged {
        Logged {
            ring: vec![0; self.limit].into_boxed_slice(),
            first: 0,
            length: 0,
            gone: 0,
        }
    }

    pub(crate) fn load(&self, reader: &mut Reader<'_>) -> Result<Logged, Damaged> {
        let mut logged = self.fresh();
        let gone = reader.number()?;
        let mut at = 0_u64;
        for _ in 0..reader.up_to(self.limit as u64)? {
            at = at.wrapping_add(reader.number()?);
            logged.push(at);
        }
        logged.gone = gone;
        Ok(logged)
    }

    /// The latest of `old`, as many as this keeps.
    pub(crate) fn resized(&self, old: &Logged) -> Logged {
        let mut logged = self.fresh();
        for index in 0..old.length {
            logged.push(old.get(index));
        }
        logged
    }

    /// The first entry that is in the window which ends at `at`, or after it.
    fn first_within(&self, logged: &Logged, at: u64) -> usize {
        match at.checked_sub(self.window) {
            Some(left) => logged.later_than(left),
            None => 0,
        }
    }

    pub(crate) fn earliest(&self, logged: &Logged, requests: u64, from: u64) -> u64 {
        let from = from.max(logged.last());
        let within = self.first_within(logged, from);
        let used = logged.length - within;
        let requests = usize::try_from(requests).unwrap_or(usize::MAX);
        match (used.saturating_add(requests)).checked_sub(self.limit) {
            None | Some(0) => from,
            // So many have to leave it.
            Some(over) => logged.get(within + over - 1).saturating_add(self.window),
        }
    }

    pub(crate) fn take(&self, logged: &mut Logged, requests: u64, at: u64) {
        (0..requests).for_each(|_| logged.push(at));
    }

    pub(crate) fn force(&self, logged: &mut Logged, requests: u64, at: u64) {
        let kept = requests.min(u64::try_from(self.limit).unwrap_or(u64::MAX));
        let at = at.max(logged.last());
        (0..kept).for_each(|_| logged.push(at));
    }

    pub(crate) fn is_same(&self, one: &Logged, other: &Logged, at: u64) -> bool {
        let within = |it: &Logged| self.first_within(it, at)..it.length;
        let (one_within, other_within) = (within(one), within(other));
        one_within.len() == other_within.len()
            && one_within
                .zip(other_within)
                .all(|(a, b)| one.get(a) == other.get(b))
    }

    pub(crate) fn give_back(&self, logged: &mut Logged, requests: u64, at: u64) {
        let end = logged.later_than(at);
        let same = (0..end).rev().take_while(|index| logged.get(*index) == at);
        let found = same
            .take(usize::try_from(requests).unwrap_or(usize::MAX))
            .count();
        let was_latest = end == logged.length;
        let length = logged.ring.len();
        for index in end..logged.length {
            logged.ring[(logged.first + index - found) % length] = logged.get(index);
        }
        logged.length -= found;
        // What was pushed out counts again: not later than the latest of that, and what the latest call pushed out had left
        // the window when it went; more is not known.
        if logged.gone > 0 {
            let stand_in = if was_latest {
                at.saturating_sub(self.window).min(logged.gone)
            } else {
                logged.gone
            };
            for _ in 0..found {
                logged.first = (logged.first + length - 1) % length;
                logged.ring[logged.first] = stand_in;
                logged.length += 1;
            }
        }
    }

    pub(crate) fn is_idle(&self, logged: &Logged, now: u64) -> bool {
        logged.last() <= now && self.used(logged, now) == 0
    }

    pub(crate) fn used(&self, logged: &Logged, now: u64) -> u64 {
        let used = logged.length - self.first_within(logged, now);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}
