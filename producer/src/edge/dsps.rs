//! How many cookies came of each DSP, and what of them was rejected and why.
//!
//! # Which DSPs have a name
//!
//! A request may name any of four thousand million DSPs, so the number of series is bounded. With a list in the settings those on it
//! have one, and all others are unknown: counted as `other`, and refused where the settings say so. Without a list DSPs get
//! one as they are first seen, until [`Shown::max`] have; the rest is `other`. A stranger can take these places by making
//! DSPs up. Requests whose DSP is not readable are counted as `none`.
//!
//! The list may change while the process runs. What has a series keeps it until the end; when a new list leaves it out, it
//! counts no more.
//!
//! # What it costs
//!
//! A burst clears a [`Tally`] of 256 bytes, a request costs one lookup, whose result also says whether the DSP is known, and one
//! write into the tally. When the burst is in the log, one lock is taken that, but for a scrape, rarely another thread wants, and
//! under it an addition is made for each request. Counters that all threads share would have been simpler, but there are as many of them as
//! DSPs, and each addition would wait for the memory of another processor. What it takes in time is said at
//! `edge/connection.rs`.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use prometheus::{
    core::{Collector, Desc},
    proto::MetricFamily,
};
use runtime::metrics::{Family, Registry};

use super::request::Rejection;

const COOKIES: Family = Family::counter(
    "producer_dsp_cookies_total",
    "Sync requests by DSP and outcome: accepted, or why they were rejected.",
    &["dsp", "outcome"],
);

/// Most DSPs that can be told to be shown; each takes 512 bytes of each of at most 64 shards.
pub const SHOWN_MAX: usize = 1024;

/// Most sets of counts: with more threads than these, some share one.
const SHARDS_MAX: usize = 64;

/// Requests that a tally holds; a burst of the log is full of fewer, unless they were rejected.
const TALLY_MAX: usize = 64;

/// Index of what was accepted; that of a rejection follows its discriminant.
const ACCEPTED: usize = 0;
const OUTCOMES: usize = 1 + Rejection::ALL.len();

/// Places of what has no name of its own.
const NONE: Place = Place(0);
const OTHER: Place = Place(1);
const FIRST: usize = 2;

/// Set in the table for a DSP that a new list left out.
const UNLISTED: u64 = 1;

/// Which DSPs have a series of their own, and what becomes of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The list; when it is empty, those that come first.
    pub named: BTreeSet<u32>,
    /// Most of them.
    pub max: usize,
    /// Whether cookies of DSPs that are not on the list are refused.
    pub refuses_others: bool,
}

/// Where a DSP is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u16);

/// What one burst brought.
#[derive(Debug)]
pub struct Tally {
    /// Place and outcome.
    requests: [(Place, u8); TALLY_MAX],
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
    pub fn accepted(&mut self, place: Place) {
        self.push(place, ACCEPTED);
    }

    /// Notes a rejected request.
    ///
    /// # Panics
    /// When it is full.
    pub fn rejected(&mut self, place: Place, rejection: Rejection) {
        self.push(place, 1 + rejection as usize);
    }

    fn push(&mut self, place: Place, outcome: usize) {
        let outcome = u8::try_from(outcome).expect("there are few outcomes");
        self.requests[self.len] = (place, outcome);
        self.len += 1;
    }
}

/// Counts all DSPs of one producer; clones share it.
#[derive(Debug, Clone)]
pub struct Dsps {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    desc: Desc,
    names: Names,
    shards: Vec<Shard>,
}

/// What some threads counted, apart from what others count by a line of the processor's cache.
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
        let places = names.places();
        // Twice as many as run at once: then two that do rarely share one.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shards =
            (0..SHARDS_MAX.min(2 * threads)).map(|_| Shard(Mutex::new(vec![0; places * OUTCOMES])));
        let dsps = Self {
            shared: Arc::new(Shared {
                desc: COOKIES.desc()?,
                names,
                shards: shards.collect(),
            }),
        };
        registry.register(Box::new(dsps.clone()))?;
        Ok(dsps)
    }

    /// Where a DSP is counted, whose number never is 0; `None` when it is not readable.
    #[must_use]
    pub fn place(&self, dsp_id: Option<u32>) -> Place {
        dsp_id.map_or(NONE, |dsp_id| self.shared.names.place(dsp_id))
    }

    /// Whether cookies of the DSP at this place are refused.
    #[must_use]
    pub fn refuses(&self, place: Place, dsp_id: u32) -> bool {
        let names = &self.shared.names;
        // Looked for once more: the list that is refused by may have come between.
        place == OTHER
            && names.refuses_others.load(Ordering::Acquire)
            && names.place(dsp_id) == OTHER
    }

    /// Takes another list into use, at once and as a whole; [`Shown::max`] stays.
    pub fn show(&self, shown: &Shown) {
        if !self.shared.names.show(shown) {
            tracing::warn!(
                dsps = shown.named.len(),
                "there were too many other DSPs before these of --dsps: the new list needs a restart"
            );
        }
    }

    /// Counts what a burst brought, and empties it; to be called when its cookies are in the log.
    pub fn add(&self, tally: &mut Tally) {
        if tally.len == 0 {
            return;
        }
        let shared = &*self.shared;
        let places = shared.names.places();
        let shard = &shared.shards[thread_number() % shared.shards.len()];
        let mut counts = shard.counts();
        for &(Place(place), outcome) in &tally.requests[..tally.len] {
            counts[usize::from(outcome) * places + usize::from(place)] += 1;
        }
        drop(counts);
        tally.len = 0;
    }

    /// What all threads counted, by outcome and place.
    fn sums(&self) -> Vec<u64> {
        let mut sums = vec![0; self.shared.names.places() * OUTCOMES];
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

impl Collector for Dsps {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.shared.desc]
    }

    /// All outcomes of what was accepted, and those rejections that there were.
    fn collect(&self) -> Vec<MetricFamily> {
        let names = &self.shared.names;
        let (places, sums) = (names.places(), self.sums());
        let labels: Vec<_> = (0..places).map(|place| names.label(place)).collect();
        let counts = sums.iter().enumerate().filter_map(|(index, &count)| {
            let (outcome, place) = (index / places, index % places);
            let dsp = labels[place].as_deref()?;
            let is_shown = count > 0 || (outcome == ACCEPTED && place != usize::from(NONE.0));
            is_shown.then(|| ([dsp, outcome_label(outcome)], as_f64(count)))
        });
        vec![COOKIES.with(counts)]
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

/// Numbers threads as they come.
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

/// The DSPs that have a name: a table of their numbers, at least a quarter of it empty, that only grows and is read without a lock.
#[derive(Debug)]
struct Names {
    /// Twice a DSP's number, or [`UNLISTED`]; 0 where there is none.
    dsps: Vec<AtomicU64>,
    /// Most that get in by coming first.
    max: usize,
    /// How many are in. Whoever lets one in or out of the list holds the lock.
    entered: Mutex<usize>,
    /// Whether another one that comes gets in: there is no list, and room.
    is_open: AtomicBool,
    refuses_others: AtomicBool,
}

impl Names {
    fn new(shown: &Shown) -> Self {
        let max = shown.max.max(shown.named.len()).min(SHOWN_MAX);
        // Room for several lists, one after the other.
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

    /// How many places there are.
    fn places(&self) -> usize {
        FIRST + self.dsps.len()
    }

    /// Whether there is room for the list, which then holds. A DSP of both lists is on one of them at each moment.
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

    /// The place of a DSP, which it is given if it may have one.
    fn place(&self, dsp_id: u32) -> Place {
        match self.find(dsp_id) {
            (_, 0) => self.enter(dsp_id),
            found => Self::found(found),
        }
    }

    /// Gives a DSP that has none a place, unless there is a list or no room.
    #[cold]
    fn enter(&self, dsp_id: u32) -> Place {
        if !self.is_open.load(Ordering::Relaxed) {
            return OTHER;
        }
        let mut entered = self.entered();
        // Another thread may have been faster.
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

    /// Where in the table a DSP is, or would be, and what is there.
    fn find(&self, dsp_id: u32) -> (usize, u64) {
        let mask = self.dsps.len() - 1;
        // Fibonacci hashing: numbers in a row come to lie far from each other.
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

    fn found((at, entry): (usize, u64)) -> Place {
        if entry & UNLISTED == UNLISTED {
            return OTHER;
        }
        Place(u16::try_from(FIRST + at).expect("there are few places"))
    }

    fn entered(&self) -> MutexGuard<'_, usize> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a place; `None` when nobody has it.
    fn label(&self, place: usize) -> Option<String> {
        match place.checked_sub(FIRST) {
            None if place == usize::from(NONE.0) => Some("none".to_owned()),
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
