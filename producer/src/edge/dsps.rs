//! Counts the cookies of each DSP: how many were accepted, and how many were rejected and why.
//!
//! # Which DSPs have a series
//!
//! A request may name any of four billion DSPs, so the number of series is bounded. If the settings list DSPs, those
//! have their own series. All others are unknown: they are counted as `other`, and refused if the settings say so.
//! Without a list, DSPs get a series as they are first seen, up to [`Shown::max`]; the rest is `other`. A client can
//! use up these slots by making up DSPs. Requests with an unreadable DSP are counted as `none`.
//!
//! The list may change while the process runs. A DSP that has a series keeps it until the end of the process, but its
//! counters stand still while it is not on the list.
//!
//! # What it costs
//!
//! A burst clears a [`Tally`] of 256 bytes. A request costs one lookup, which also tells whether the DSP is known, and
//! one write to the tally. When the burst is in the log, one lock is taken, which apart from scrapes another thread
//! rarely holds, and under it one addition is made for each request. Counters shared by all threads would have been
//! simpler, but there are as many of them as DSPs, and each addition would wait for the cache of another processor.
//! `edge/connection.rs` has the measured times.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use figures::producer::DSP_COOKIES;
use prometheus::proto::MetricFamily;
use runtime::metrics::{Registry, family};

use super::request::Rejection;

/// The most DSPs that can have a series; each takes 512 bytes in each of at most 64 shards.
pub const SHOWN_MAX: usize = 1024;

/// The most sets of counts: with more threads than these, some share one.
const SHARDS_MAX: usize = 64;

/// The most requests that a tally holds; unless they are rejected, fewer fill a burst.
const TALLY_MAX: usize = 64;

/// The index of accepted cookies; that of a rejection is one more than its discriminant.
const ACCEPTED: usize = 0;
const OUTCOMES: usize = 1 + Rejection::ALL.len();

/// The slots of requests without a series of their own.
const NONE: Slot = Slot(0);
const OTHER: Slot = Slot(1);
const FIRST: usize = 2;

/// Set in the table for a DSP that is not on the current list.
const UNLISTED: u64 = 1;

/// Which DSPs have a series of their own, and whether others are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The list; if it is empty, the DSPs that are seen first.
    pub named: BTreeSet<u32>,
    /// The most DSPs that get a series without a list.
    pub max: usize,
    /// Whether cookies of DSPs that are not on the list are refused.
    pub refuses_others: bool,
}

/// Where a DSP is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u16);

/// The requests of one burst.
#[derive(Debug)]
pub struct Tally {
    /// Slot and outcome.
    requests: [(Slot, u8); TALLY_MAX],
    len: usize,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requests: [(NONE, 0); TALLY_MAX],
            len: 0,
        }
    }
}

impl Tally {
    /// Whether it must be [added](Dsps::add) before it takes another request.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len == TALLY_MAX
    }

    /// Notes an accepted cookie.
    ///
    /// # Panics
    /// When it is full.
    pub fn accepted(&mut self, slot: Slot) {
        self.push(slot, ACCEPTED);
    }

    /// Notes a rejected request.
    ///
    /// # Panics
    /// When it is full.
    pub fn rejected(&mut self, slot: Slot, rejection: Rejection) {
        self.push(slot, 1 + rejection as usize);
    }

    fn push(&mut self, slot: Slot, outcome: usize) {
        let outcome = u8::try_from(outcome).expect("there are few outcomes");
        self.requests[self.len] = (slot, outcome);
        self.len += 1;
    }
}

/// The counts of all DSPs of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Dsps {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    names: Names,
    shards: Vec<Shard>,
}

/// The counts of some threads, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Vec<u64>>);

impl Dsps {
    /// Registers `producer_dsp_cookies_total{dsp,outcome}`.
    ///
    /// # Errors
    /// When it is registered already.
    pub fn register(registry: &Registry, shown: &Shown) -> prometheus::Result<Self> {
        let names = Names::new(shown);
        let slots = names.slots();
        // Twice as many as run at once, so that two running threads rarely share one.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shards =
            (0..SHARDS_MAX.min(2 * threads)).map(|_| Shard(Mutex::new(vec![0; slots * OUTCOMES])));
        let dsps = Self {
            shared: Arc::new(Shared {
                names,
                shards: shards.collect(),
            }),
        };
        let read = dsps.clone();
        registry.read([DSP_COOKIES], move || vec![read.family()])?;
        Ok(dsps)
    }

    /// The slot of a DSP, whose id is never 0; `None` for an unreadable one.
    #[must_use]
    pub fn slot(&self, dsp_id: Option<u32>) -> Slot {
        dsp_id.map_or(NONE, |dsp_id| self.shared.names.slot(dsp_id))
    }

    /// Whether cookies of the DSP with this slot are refused.
    #[must_use]
    pub fn refuses(&self, slot: Slot, dsp_id: u32) -> bool {
        let names = &self.shared.names;
        // Looked up once more: the list that refuses others may have changed in between.
        slot == OTHER && names.refuses_others.load(Ordering::Acquire) && names.slot(dsp_id) == OTHER
    }

    /// Applies another list, at once and as a whole; [`Shown::max`] does not change.
    pub fn show(&self, shown: &Shown) {
        if !self.shared.names.show(shown) {
            tracing::warn!(
                dsps = shown.named.len(),
                "there were too many other DSPs before these of --dsps: the new list needs a restart"
            );
        }
    }

    /// Counts the requests of a burst and empties the tally; to be called when the cookies are in the log.
    pub fn add(&self, tally: &mut Tally) {
        if tally.len == 0 {
            return;
        }
        let shared = &*self.shared;
        let slots = shared.names.slots();
        let shard = &shared.shards[thread_number() % shared.shards.len()];
        let mut counts = shard.counts();
        for &(Slot(slot), outcome) in &tally.requests[..tally.len] {
            counts[usize::from(outcome) * slots + usize::from(slot)] += 1;
        }
        drop(counts);
        tally.len = 0;
    }

    /// What came of each DSP: its name, requests accepted, requests rejected.
    pub(crate) fn requests(&self) -> Vec<(String, u64, u64)> {
        let names = &self.shared.names;
        let (slots, sums) = (names.slots(), self.sums());
        let (accepted, rejected) = sums.split_at(slots);
        let each = accepted.iter().enumerate().filter_map(|(slot, &accepted)| {
            let rejected = rejected.iter().skip(slot).step_by(slots).sum();
            let is_shown = accepted + rejected > 0 || slot != usize::from(NONE.0);
            Some((names.label(slot).filter(|_| is_shown)?, accepted, rejected))
        });
        each.collect()
    }

    /// Accepted cookies of every DSP, and the rejections that occurred.
    fn family(&self) -> MetricFamily {
        let names = &self.shared.names;
        let (slots, sums) = (names.slots(), self.sums());
        let labels: Vec<_> = (0..slots).map(|slot| names.label(slot)).collect();
        let counts = sums.iter().enumerate().filter_map(|(index, &count)| {
            let (outcome, slot) = (index / slots, index % slots);
            let dsp = labels[slot].as_deref()?;
            let is_shown = count > 0 || (outcome == ACCEPTED && slot != usize::from(NONE.0));
            is_shown.then(|| ([dsp, outcome_label(outcome)], as_f64(count)))
        });
        family(DSP_COOKIES, counts)
    }

    /// The sums over all threads, by outcome and slot.
    fn sums(&self) -> Vec<u64> {
        let mut sums = vec![0; self.shared.names.slots() * OUTCOMES];
        for shard in &self.shared.shards {
            for (sum, count) in sums.iter_mut().zip(&*shard.counts()) {
                *sum += count;
            }
        }
        sums
    }
}

impl Shard {
    fn counts(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn outcome_label(outcome: usize) -> &'static str {
    match outcome.checked_sub(1) {
        None => "accepted",
        Some(rejection) => Rejection::ALL[rejection].label(),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// The number of this thread, in order of first use.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            let new = THREADS.fetch_add(1, Ordering::Relaxed);
            number.set(Some(new));
            new
        })
    })
}

/// The DSPs that have a series: a hash table that only grows, is at least a quarter empty, and is read without a lock.
#[derive(Debug)]
struct Names {
    /// A DSP's id shifted left by one, with [`UNLISTED`] in the lowest bit; 0 where there is none.
    dsps: Vec<AtomicU64>,
    /// The most DSPs that are entered as they are first seen.
    max: usize,
    /// How many are entered. This lock is held to enter a DSP and to change the list.
    entered: Mutex<usize>,
    /// Whether a new DSP is entered when it is seen: there is no list, and there is room.
    is_open: AtomicBool,
    refuses_others: AtomicBool,
}

impl Names {
    fn new(shown: &Shown) -> Self {
        let max = shown.max.max(shown.named.len()).min(SHOWN_MAX);
        // Room for several lists, one after another.
        let size = (4 * max).next_power_of_two();
        let names = Self {
            dsps: (0..size).map(|_| AtomicU64::new(0)).collect(),
            max,
            entered: Mutex::new(0),
            is_open: AtomicBool::new(false),
            refuses_others: AtomicBool::new(false),
        };
        names.show(shown);
        names
    }

    /// How many slots there are.
    fn slots(&self) -> usize {
        FIRST + self.dsps.len()
    }

    /// Applies the list if there is room for it, and returns whether there was. A DSP on both lists is listed at every
    /// moment.
    fn show(&self, shown: &Shown) -> bool {
        let listed = &shown.named;
        let mut entered = self.entered();
        let new = listed.iter().filter(|&&dsp_id| self.find(dsp_id).1 == 0);
        if *entered + new.count() > self.dsps.len() / 4 * 3 {
            return false;
        }
        self.is_open.store(false, Ordering::Relaxed);
        for &dsp_id in listed {
            let (at, found) = self.find(dsp_id);
            *entered += usize::from(found == 0);
            self.dsps[at].store(u64::from(dsp_id) << 1, Ordering::Relaxed);
        }
        for entry in &self.dsps {
            let found = entry.load(Ordering::Relaxed);
            let is_listed = listed.is_empty()
                || u32::try_from(found >> 1).is_ok_and(|dsp_id| listed.contains(&dsp_id));
            if found != 0 {
                let unlisted = if is_listed { 0 } else { UNLISTED };
                entry.store(found & !UNLISTED | unlisted, Ordering::Relaxed);
            }
        }
        let is_open = listed.is_empty() && *entered < self.max;
        self.is_open.store(is_open, Ordering::Relaxed);
        self.refuses_others
            .store(shown.refuses_others, Ordering::Release);
        true
    }

    /// The slot of a DSP, which is entered if it may be.
    fn slot(&self, dsp_id: u32) -> Slot {
        match self.find(dsp_id) {
            (_, 0) => self.enter(dsp_id),
            found => Self::found(found),
        }
    }

    /// Enters a new DSP, unless there is a list or no room.
    #[cold]
    fn enter(&self, dsp_id: u32) -> Slot {
        if !self.is_open.load(Ordering::Relaxed) {
            return OTHER;
        }
        let mut entered = self.entered();
        // Another thread may have entered it meanwhile.
        let (at, mut entry) = self.find(dsp_id);
        if entry == 0 {
            if !self.is_open.load(Ordering::Relaxed) {
                return OTHER;
            }
            entry = u64::from(dsp_id) << 1;
            self.dsps[at].store(entry, Ordering::Relaxed);
            *entered += 1;
            self.is_open.store(*entered < self.max, Ordering::Relaxed);
        }
        Self::found((at, entry))
    }

    /// The index at which a DSP is in the table, or would be, and the entry there.
    fn find(&self, dsp_id: u32) -> (usize, u64) {
        let mask = self.dsps.len() - 1;
        // Fibonacci hashing spreads consecutive ids.
        let hash = u64::from(dsp_id).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut at = usize::try_from(hash).unwrap_or(0) & mask;
        loop {
            let found = self.dsps[at].load(Ordering::Relaxed);
            if found >> 1 == u64::from(dsp_id) || found == 0 {
                return (at, found);
            }
            at = (at + 1) & mask;
        }
    }

    fn found((at, entry): (usize, u64)) -> Slot {
        if entry & UNLISTED == UNLISTED {
            return OTHER;
        }
        Slot(u16::try_from(FIRST + at).expect("there are few places"))
    }

    fn entered(&self) -> MutexGuard<'_, usize> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The label of a slot; `None` when it is free.
    fn label(&self, slot: usize) -> Option<String> {
        match slot.checked_sub(FIRST) {
            None if slot == usize::from(NONE.0) => Some("none".to_owned()),
            None => Some("other".to_owned()),
            Some(at) => {
                let dsp_id = self.dsps[at].load(Ordering::Relaxed) >> 1;
                (dsp_id != 0).then(|| dsp_id.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests;
