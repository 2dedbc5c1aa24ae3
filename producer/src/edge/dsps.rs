//! How many cookies came of each DSP, and what of them was rejected and why.
//!
//! # Which DSPs have a name
//!
//! A request may name any of four thousand million DSPs, so the number of series is bounded: those that the settings
//! name have one from the start, others as they are first seen, until [`Shown::max`] have; the rest is counted as `other`. What has a name
//! keeps it until the process ends. A stranger can take the places that are left by making DSPs up: those that matter
//! should be named in the settings. Requests whose DSP is not readable are counted as `none`.
//!
//! # What it costs
//!
//! A burst clears a [`Tally`] of 512 bytes, a request costs one write into it. When the burst
//! is in the log, one lock is taken that, but for a scrape, rarely another thread wants, and under it a lookup and an addition
//! are made for each request. Counters that all threads share would have been simpler, but there are as many of them as
//! DSPs, and each addition would wait for the memory of another processor. What it takes in time is said at
//! `edge/connection.rs`.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    thread,
};

use cookiesync::process::metrics::{Family, Registry};
use prometheus::{
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::request::Rejection;

const COOKIES: Family = Family::counter(
    "producer_dsp_cookies_total",
    "Sync requests by DSP and outcome: accepted, or why they were rejected.",
    &["dsp", "outcome"],
);

/// Most DSPs that can be told to be shown; each takes 240 bytes of each of at most 64 shards.
pub const SHOWN_MAX: usize = 1024;

/// Most sets of counts: with more threads than these, some share one.
const SHARDS_MAX: usize = 64;

/// Requests that a tally holds; a burst of the log is full of fewer, unless they were rejected.
const TALLY_MAX: usize = 64;

/// Index of what was accepted; that of a rejection follows its discriminant.
const ACCEPTED: usize = 0;
const OUTCOMES: usize = 1 + Rejection::ALL.len();

/// Places of what has no name of its own.
const NONE: usize = 0;
const OTHER: usize = 1;
const FIRST: usize = 2;

/// Which DSPs have a series of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// These, from the start.
    pub named: BTreeSet<u32>,
    /// And those that come first, up to so many in all.
    pub max: usize,
}

/// What one burst brought.
#[derive(Debug)]
pub struct Tally {
    /// DSP (0 for none) and outcome.
    requests: [(u32, u8); TALLY_MAX],
    len: usize,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            requests: [(0, 0); TALLY_MAX],
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

    /// Notes an accepted cookie of a DSP, whose number never is 0.
    ///
    /// # Panics
    /// When it is full.
    pub fn accepted(&mut self, dsp_id: u32) {
        self.push(dsp_id, ACCEPTED);
    }

    /// Notes a rejected request, with its DSP if that was readable.
    ///
    /// # Panics
    /// When it is full.
    pub fn rejected(&mut self, dsp_id: Option<u32>, rejection: Rejection) {
        self.push(dsp_id.unwrap_or(0), 1 + rejection as usize);
    }

    fn push(&mut self, dsp_id: u32, outcome: usize) {
        let outcome = u8::try_from(outcome).expect("there are few outcomes");
        self.requests[self.len] = (dsp_id, outcome);
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

    /// Counts what a burst brought, and empties it; to be called when its cookies are in the log.
    pub fn add(&self, tally: &mut Tally) {
        if tally.len == 0 {
            return;
        }
        let shared = &*self.shared;
        let places = shared.names.places();
        let shard = &shared.shards[thread_number() % shared.shards.len()];
        let mut counts = shard.counts();
        for &(dsp_id, outcome) in &tally.requests[..tally.len] {
            let place = shared.names.place(dsp_id);
            counts[usize::from(outcome) * places + place] += 1;
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
            let is_shown = count > 0 || (outcome == ACCEPTED && place != NONE);
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

/// The DSPs that have a name: a table of their numbers, at least half of it empty, that only grows and is read without a lock.
#[derive(Debug)]
struct Names {
    /// 0 where there is none.
    dsps: Vec<AtomicU32>,
    /// How many more may get in.
    left: AtomicUsize,
}

impl Names {
    fn new(shown: &Shown) -> Self {
        let max = shown.max.max(shown.named.len()).min(SHOWN_MAX);
        let size = (2 * max).next_power_of_two();
        let names = Self {
            dsps: (0..size).map(|_| AtomicU32::new(0)).collect(),
            left: AtomicUsize::new(max),
        };
        for &dsp_id in &shown.named {
            names.place(dsp_id);
        }
        names
    }

    /// How many places there are.
    fn places(&self) -> usize {
        FIRST + self.dsps.len()
    }

    /// The place of a DSP, which it is given if there is one left; 0 is no DSP.
    fn place(&self, dsp_id: u32) -> usize {
        if dsp_id == 0 {
            return NONE;
        }
        let mask = self.dsps.len() - 1;
        // Fibonacci hashing: numbers in a row come to lie far from each other.
        let hash = u64::from(dsp_id).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mut at = usize::try_from(hash).unwrap_or(0) & mask;
        loop {
            match self.dsps[at].load(Ordering::Relaxed) {
                found if found == dsp_id => return FIRST + at,
                0 => match self.take(at, dsp_id) {
                    Some(true) => return FIRST + at,
                    Some(false) => return OTHER,
                    // Somebody else was faster: look again who that was.
                    None => {}
                },
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Whether an empty place could be given to a DSP; `None` when it is no longer empty.
    fn take(&self, at: usize, dsp_id: u32) -> Option<bool> {
        let (set, order) = (|left: usize| left.checked_sub(1), Ordering::Relaxed);
        if self.left.fetch_update(order, order, set).is_err() {
            return Some(false);
        }
        let taken = self.dsps[at].compare_exchange(0, dsp_id, order, order);
        if taken.is_err() {
            self.left.fetch_add(1, order);
            return None;
        }
        Some(true)
    }

    /// The name of a place; `None` when nobody has it.
    fn label(&self, place: usize) -> Option<String> {
        match place {
            NONE => Some("none".to_owned()),
            OTHER => Some("other".to_owned()),
            _ => {
                let dsp_id = self.dsps[place - FIRST].load(Ordering::Relaxed);
                (dsp_id != 0).then(|| dsp_id.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests;
