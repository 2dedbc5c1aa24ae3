//! The step window: a sliding window that moves in steps, with a counter for each step.
//!
//! A call counts with all others of its step, so when it leaves the window is not known to less than a step. It leaves with the
//! last of its step: a window of `k` steps looks at the step that goes on and at `k` full ones before. So no sliding window of this
//! length has ever more than the limit, and a call is let go at most one step later than a sliding log would. A window that
//! begins a whole number of steps before the end of the step that goes on, `k` in all, would let a call go up to a step too early.

use std::time::Duration;

use crate::{
    decision::TooEarly,
    saved::{Damaged, Reader, Writer},
};

#[derive(Debug, Clone)]
pub(crate) struct Steps {
    limit: u64,
    step: u64,
    window: u64,
    /// Counters: the step that goes on, and those before that the window reaches.
    length: u64,
}

/// The counters of the latest steps.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    counts: Box<[u64]>,
    /// The number of the latest step since the Unix epoch.
    latest: u64,
    total: u64,
    last: u64,
}

impl Ring {
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.counts)
    }

    /// Only counters in which something is: of many steps few have.
    pub(crate) fn save(&self, out: &mut Writer<'_>) {
        out.number(self.latest).number(self.last);
        let counted = || self.counts.iter().enumerate().filter(|(_, it)| **it > 0);
        out.number(counted().count() as u64);
        for (index, count) in counted() {
            out.number(index as u64).number(*count);
        }
    }
}

impl Steps {
    pub(crate) fn new(limit: u64, window: Duration, step: Duration) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("a checked time");
        let (window, step) = (nanos(window), nanos(step));
        Self {
            limit,
            step,
            window,
            length: window.div_ceil(step) + 1,
        }
    }

    pub(crate) fn has_windows_of(&self, other: &Self) -> bool {
        (self.window, self.step) == (other.window, other.step)
    }

    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    pub(crate) fn reach(&self) -> u64 {
        self.length.saturating_mul(self.step)
    }

    /// Whether a call at `at` is in the window of `now`.
    pub(crate) fn is_within(&self, at: u64, now: u64) -> bool {
        at / self.step >= self.first(now / self.step)
    }

    pub(crate) fn fresh(&self) -> Ring {
        let length = usize::try_from(self.length).expect("a checked number of steps");
        Ring {
            counts: vec![0; length].into_boxed_slice(),
            latest: 0,
            total: 0,
            last: 0,
        }
    }

    pub(crate) fn load(&self, reader: &mut Reader<'_>) -> Result<Ring, Damaged> {
        let mut ring = self.fresh();
        (ring.latest, ring.last) = (reader.number()?, reader.number()?);
        for _ in 0..reader.up_to(self.length)? {
            let index = reader.up_to(self.length - 1)?;
            let count = reader.number()?;
            ring.total = ring.total.checked_add(count).ok_or(Damaged)?;
            let place = &mut ring.counts[usize::try_from(index).map_err(|_| Damaged)?];
            *place = place.checked_add(count).ok_or(Damaged)?;
        }
        // So that no sum with a few windows overflows.
        (ring.latest <= u64::MAX / 2).then_some(ring).ok_or(Damaged)
    }

    fn index(&self, step: u64) -> usize {
        usize::try_from(step % self.length).expect("less than the length")
    }

    /// The first step of the window in which `step` is the latest.
    fn first(&self, step: u64) -> u64 {
        step.saturating_sub(self.length - 1)
    }

    /// How many have left the window when `step` goes on.
    fn left(&self, ring: &Ring, step: u64) -> u64 {
        if step >= ring.latest + self.length {
            return ring.total;
        }
        let gone = self.first(ring.latest)..self.first(step);
        gone.map(|step| ring.counts[self.index(step)]).sum()
    }

    pub(crate) fn earliest(&self, ring: &Ring, requests: u64, from: u64) -> u64 {
        // What was before the window of the latest step is not known any more.
        let from = from
            .max(ring.last)
            .max(ring.latest.saturating_mul(self.step));
        let step = from / self.step;
        let mut used = ring.total - self.left(ring, step);
        if used.saturating_add(requests) <= self.limit {
            return from;
        }
        let last = ring.latest + self.length;
        for first in self.first(step)..=ring.latest {
            used -= ring.counts[self.index(first)];
            if used.saturating_add(requests) <= self.limit {
                return (first + self.length).min(last).saturating_mul(self.step);
            }
        }
        last.saturating_mul(self.step)
    }

    fn advance(&self, ring: &mut Ring, step: u64) {
        if step <= ring.latest {
            return;
        }
        if step >= ring.latest + self.length {
            ring.counts.fill(0);
            ring.total = 0;
        } else {
            for step in ring.latest + 1..=step {
                let index = self.index(step);
                ring.total -= ring.counts[index];
                ring.counts[index] = 0;
            }
        }
        ring.latest = step;
    }

    pub(crate) fn take(&self, ring: &mut Ring, requests: u64, at: u64) {
        self.force(ring, requests, at);
        ring.last = at;
    }

    pub(crate) fn force(&self, ring: &mut Ring, requests: u64, at: u64) {
        let step = at / self.step;
        self.advance(ring, step);
        if step >= self.first(ring.latest) {
            let count = &mut ring.counts[self.index(step)];
            *count = count.saturating_add(requests);
            ring.total = ring.total.saturating_add(requests);
        }
    }

    /// Counts calls made at `at`: what is older than the window has no effect.
    pub(crate) fn record(
        &self,
        ring: &mut Ring,
        requests: u64,
        at: u64,
        now: u64,
    ) -> Result<(), TooEarly> {
        if at > now.saturating_add(self.step) {
            return Err(TooEarly);
        }
        // Clocks differ; what is not past is now.
        self.force(ring, requests, at.min(now));
        Ok(())
    }

    pub(crate) fn give_back(&self, ring: &mut Ring, requests: u64, at: u64) {
        let step = at / self.step;
        if step <= ring.latest && step >= self.first(ring.latest) {
            let count = &mut ring.counts[self.index(step)];
            let given = requests.min(*count);
            *count -= given;
            ring.total -= given;
        }
    }

    pub(crate) fn is_idle(&self, ring: &Ring, now: u64) -> bool {
        ring.last <= now && self.used(ring, now) == 0
    }

    pub(crate) fn used(&self, ring: &Ring, now: u64) -> u64 {
        ring.total - self.left(ring, (now / self.step).max(ring.latest))
    }
}
