//! Counts the cookies of each DSP: how many were accepted, and how many were rejected and why.
//!
//! # Which DSPs have a series
//!
//! A request may name any of four billion DSPs, so the number of series is bounded. If the settings list DSPs, those
//! have their own series. All others are unknown: they are counted as `other`, and refused if the settings say so.
//! Without a list, DSPs get a series as they are first seen, up to [`Shown::max`]; the rest is `other`. A client can
//! use up these places by making up DSPs. Requests with an unreadable DSP are counted as `none`.
//!
//! The list may change while the process runs. A DSP that leaves the list keeps its series, which stands still. When
//! there would be more than `KEPT_MAX` series, those of DSPs that left the list before are removed and their counts added
//! to `other`.
//!
//! # What it costs
//!
//! A batch clears a [`Tally`] of 320 bytes, and a request costs one write to it. When the batch is in the log, one lookup
//! and one addition are made for each request, to a counter that apart from scrapes another thread rarely uses. Each
//! connection has its own handle of the table of DSPs, which is replaced as a whole when it changes, so no lock is taken.
//! `edge/connection.rs` has the measured times.

use std::{
    array,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use metric_defs::producer::DSP_COOKIES;
use prometheus::proto::MetricFamily;
use runtime::metrics::{Registry, family};

use super::request::Rejection;
use crate::metrics::as_f64;

/// The most DSPs that can be listed.
pub const SHOWN_MAX: usize = 1024;

/// The most series that are kept when the list changes; each takes 128 bytes in each of at most 64 shards.
const KEPT_MAX: usize = 3 * SHOWN_MAX;

/// The most sets of counts of a series: with more threads than these, some share one.
const SHARDS_MAX: usize = 64;

/// The most requests that a tally holds; unless they are rejected, fewer fill a batch.
const TALLY_MAX: usize = 64;

/// The index of accepted cookies; that of a rejection is one more than its discriminant.
const ACCEPTED: usize = 0;
const OUTCOMES: usize = 1 + Rejection::ALL.len();

/// Stands for an unreadable DSP: no DSP has this id.
const NONE: u32 = 0;
const NONE_LABEL: &str = "none";

/// Which DSPs have a series of their own, and whether others are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shown {
    /// The list; if it is empty, the DSPs that are seen first.
    pub named: BTreeSet<u32>,
    /// The most DSPs that get a series without a list.
    pub max: usize,
    /// Whether cookies of DSPs that are not on the list are refused.
    pub refuses_others: bool,
}

/// The DSPs that have a series, as one connection knows them.
#[derive(Debug, Clone, Default)]
pub struct KnownDsps(Arc<Table>);

impl KnownDsps {
    /// Whether cookies of the DSP are refused.
    #[must_use]
    pub fn refuses(&self, dsp_id: u32) -> bool {
        self.0.shown.refuses_others && !self.0.counting.contains_key(&dsp_id)
    }
}

/// Which DSPs have a series.
#[derive(Debug, Clone, Default)]
struct Table {
    version: usize,
    shown: Shown,
    /// Those that are listed, or have a series without a list.
    counting: HashMap<u32, Arc<Series>, RandomState>,
    /// Those that have left the list: their series stand still.
    left: HashMap<u32, Arc<Series>, RandomState>,
}

impl Table {
    /// Whether a DSP without a series gets one when it is seen: there is no list, and there is room.
    fn is_open(&self) -> bool {
        self.shown.named.is_empty() && self.counting.len() < self.shown.max
    }
}

/// The requests of one batch.
#[derive(Debug)]
pub struct Tally {
    dsps: [u32; TALLY_MAX],
    outcomes: [u8; TALLY_MAX],
    len: usize,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            dsps: [NONE; TALLY_MAX],
            outcomes: [0; TALLY_MAX],
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

    /// Notes an accepted cookie of a DSP, whose id is never 0.
    ///
    /// # Panics
    /// When it is full.
    pub fn accepted(&mut self, dsp_id: u32) {
        self.push(dsp_id, ACCEPTED);
    }

    /// Notes a rejected request, of no DSP if that was unreadable.
    ///
    /// # Panics
    /// When it is full.
    pub fn rejected(&mut self, dsp_id: Option<u32>, rejection: Rejection) {
        self.push(dsp_id.unwrap_or(NONE), 1 + rejection as usize);
    }

    fn push(&mut self, dsp_id: u32, outcome: usize) {
        let outcome = u8::try_from(outcome).expect("there are few outcomes");
        self.dsps[self.len] = dsp_id;
        self.outcomes[self.len] = outcome;
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
    table: Mutex<Arc<Table>>,
    /// That of the table, which can be read without the lock.
    version: AtomicUsize,
    other: Series,
    none: Series,
}

/// How many requests had which outcome.
type Outcomes = [u64; OUTCOMES];

/// The counts of one series.
#[derive(Debug)]
struct Series(Box<[Shard]>);

/// The counts of some threads, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicU64; OUTCOMES]);

// Two cache lines; one outcome more would take four of each series and thread.
const _: () = assert!(size_of::<Shard>() == 128);

impl Default for Series {
    fn default() -> Self {
        // Twice as many as run at once, so that two running threads rarely share one.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shards = (0..SHARDS_MAX.min(2 * threads)).map(|_| Shard::default());
        Self(shards.collect())
    }
}

impl Series {
    fn add(&self, thread: usize, outcome: usize, count: u64) {
        let Shard(counts) = &self.0[thread % self.0.len()];
        counts[outcome].fetch_add(count, Ordering::Relaxed);
    }

    fn sums(&self) -> Outcomes {
        let sum = |outcome: usize| {
            let counts = self.0.iter().map(|Shard(counts)| &counts[outcome]);
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        array::from_fn(sum)
    }
}

impl Dsps {
    /// Registers `producer_dsp_cookies_total{dsp,outcome}`.
    ///
    /// # Errors
    /// When it is registered already.
    pub fn register(registry: &Registry, shown: &Shown) -> prometheus::Result<Self> {
        let dsps = Self {
            shared: Arc::new(Shared {
                table: Mutex::default(),
                version: AtomicUsize::new(0),
                other: Series::default(),
                none: Series::default(),
            }),
        };
        dsps.show(shown);
        let read = dsps.clone();
        registry.read([DSP_COOKIES], move || vec![read.family()])?;
        Ok(dsps)
    }

    /// Updates the known DSPs of a connection, to be called before each batch.
    pub fn refresh(&self, known: &mut KnownDsps) {
        if known.0.version != self.shared.version.load(Ordering::Relaxed) {
            known.0 = Arc::clone(&self.shared.table());
        }
    }

    /// Applies another list to the batches that begin after it.
    pub fn show(&self, shown: &Shown) {
        let shared = &*self.shared;
        if shared.table().shown == *shown {
            return;
        }
        shared.change(|table| {
            let Table { counting, left, .. } = table;
            if counting.len() + left.len() + shown.named.len() > KEPT_MAX {
                // Not those that leave now: a batch may still count for them.
                for (_, gone) in left.drain() {
                    for (outcome, count) in gone.sums().into_iter().enumerate() {
                        shared.other.add(0, outcome, count);
                    }
                }
            }
            if !shown.named.is_empty() {
                left.extend(counting.extract_if(|dsp_id, _| !shown.named.contains(dsp_id)));
            }
            for &dsp_id in &shown.named {
                let known = || left.remove(&dsp_id).unwrap_or_default();
                counting.entry(dsp_id).or_insert_with(known);
            }
            table.shown = shown.clone();
        });
    }

    /// Counts the requests of a batch and empties the tally; to be called when the cookies are in the log.
    pub fn add(&self, tally: &mut Tally, known: &mut KnownDsps) {
        let shared = &*self.shared;
        let thread = thread_number();
        let requests = tally.dsps.iter().zip(&tally.outcomes);
        for (&dsp_id, &outcome) in requests.take(tally.len) {
            let mut series = known.0.counting.get(&dsp_id);
            if series.is_none() && dsp_id != NONE && known.0.is_open() {
                shared.enter(dsp_id);
                self.refresh(known);
                series = known.0.counting.get(&dsp_id);
            }
            let series = match series {
                Some(series) => series,
                None if dsp_id == NONE => &shared.none,
                None => &shared.other,
            };
            series.add(thread, usize::from(outcome), 1);
        }
        tally.len = 0;
    }

    /// Accepted cookies of every DSP, and the rejections that occurred.
    fn family(&self) -> MetricFamily {
        let sums = self.sums();
        let counts = sums.iter().flat_map(|(dsp, outcomes)| {
            let outcomes = outcomes.iter().enumerate();
            let shown = outcomes.filter(move |&(outcome, &count)| {
                count > 0 || (outcome == ACCEPTED && dsp != NONE_LABEL)
            });
            shown.map(|(outcome, &count)| ([&**dsp, outcome_label(outcome)], as_f64(count)))
        });
        family(DSP_COOKIES, counts)
    }

    /// The sums over all threads of every series that is shown, by its label.
    fn sums(&self) -> Vec<(String, Outcomes)> {
        let shared = &*self.shared;
        let table = Arc::clone(&shared.table());
        let named: BTreeMap<_, _> = table.counting.iter().chain(&table.left).collect();
        let named = named
            .into_iter()
            .map(|(dsp_id, series)| (dsp_id.to_string(), series.sums()));
        let none = shared.none.sums();
        let has_none = none.iter().any(|&count| count > 0);
        let none = has_none.then(|| (NONE_LABEL.to_owned(), none));
        none.into_iter()
            .chain([("other".to_owned(), shared.other.sums())])
            .chain(named)
            .collect()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Arc<Table>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the table.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.table();
        let mut changed = Table::clone(&table);
        change(&mut changed);
        changed.version += 1;
        self.version.store(changed.version, Ordering::Relaxed);
        *table = Arc::new(changed);
    }

    /// Gives a new DSP a series, unless there is a list or no room.
    #[cold]
    fn enter(&self, dsp_id: u32) {
        self.change(|table| {
            // Another thread may have changed this meanwhile.
            if table.is_open() {
                let known = || table.left.remove(&dsp_id).unwrap_or_default();
                table.counting.entry(dsp_id).or_insert_with(known);
            }
        });
    }
}

fn outcome_label(outcome: usize) -> &'static str {
    match outcome.checked_sub(1) {
        None => "accepted",
        Some(rejection) => Rejection::ALL[rejection].label(),
    }
}

/// The number of this thread, in order of first use.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests;
