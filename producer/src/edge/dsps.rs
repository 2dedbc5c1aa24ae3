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
//! there are more than `KEPT_MAX` series, those of unlisted DSPs are removed and their counts added to `other`.
//!
//! # What it costs
//!
//! A burst clears a [`Tally`] of 320 bytes, and a request costs one write to it. When the burst is in the log, one lock
//! is taken, which apart from scrapes another thread rarely holds, and under it one lookup and one addition are made for
//! each request. Where unknown DSPs are refused, each DSP is also looked up in the list, of which each connection keeps
//! its own handle. Counters shared by all threads would have been simpler, but there are as many of them as DSPs, and
//! each addition would wait for the cache of another processor. `edge/connection.rs` has the measured times.

use std::{
    array,
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use figures::producer::DSP_COOKIES;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use prometheus::proto::MetricFamily;
use runtime::metrics::{Registry, family};

use super::request::Rejection;

/// The most DSPs that can be listed.
pub const SHOWN_MAX: usize = 1024;

/// The most series that are kept when the list changes; each takes 150 bytes in each of at most 64 shards.
const KEPT_MAX: usize = 3 * SHOWN_MAX;

/// The most sets of counts: with more threads than these, some share one.
const SHARDS_MAX: usize = 64;

/// The most requests that a tally holds; unless they are rejected, fewer fill a burst.
const TALLY_MAX: usize = 64;

/// The index of accepted cookies; that of a rejection is one more than its discriminant.
const ACCEPTED: usize = 0;
const OUTCOMES: usize = 1 + Rejection::ALL.len();

/// Stands for an unreadable DSP: no DSP has this id.
const NONE: u32 = 0;
const NONE_LABEL: &str = "none";

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

/// The listed DSPs.
type Listed = HashSet<u32, RandomState>;

/// The DSPs that are not refused, as one connection knows them.
#[derive(Debug, Clone, Default)]
pub struct KnownDsps {
    version: usize,
    /// The list, if all other DSPs are refused.
    listed: Option<Arc<Listed>>,
}

impl KnownDsps {
    /// Whether cookies of the DSP are refused.
    #[must_use]
    pub fn refuses(&self, dsp_id: u32) -> bool {
        let listed = self.listed.as_ref();
        listed.is_some_and(|listed| !listed.contains(&dsp_id))
    }
}

/// The requests of one burst.
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
    /// All have the same series.
    shards: Vec<Shard>,
    /// The newest. The lock is also held to change which series there are, and to read all of them.
    known: Mutex<KnownDsps>,
    /// That of `known`, which can be read without the lock.
    version: AtomicUsize,
    /// The most DSPs that get a series as they are first seen.
    max: usize,
    /// Whether a DSP without a series gets one when it is seen: there is no list, and there is room.
    is_open: AtomicBool,
}

/// The counts of some threads, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<Counts>);

/// How many requests had which outcome.
type Outcomes = [u64; OUTCOMES];

#[derive(Debug)]
struct Counts {
    series: HashMap<u32, Series, RandomState>,
    other: Outcomes,
}

#[derive(Debug)]
struct Series {
    is_listed: bool,
    outcomes: Outcomes,
}

impl Series {
    fn listed() -> Self {
        Self {
            is_listed: true,
            outcomes: [0; OUTCOMES],
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            series: [(NONE, Series::listed())].into_iter().collect(),
            other: [0; OUTCOMES],
        }
    }
}

impl Counts {
    /// The counts of a DSP that is listed, or has a series without a list.
    fn listed(&mut self, dsp_id: u32) -> Option<&mut Outcomes> {
        let series = self.series.get_mut(&dsp_id)?;
        series.is_listed.then_some(&mut series.outcomes)
    }

    fn show(&mut self, listed: &BTreeSet<u32>) {
        for (dsp_id, series) in &mut self.series {
            series.is_listed = listed.is_empty() || *dsp_id == NONE || listed.contains(dsp_id);
        }
        for &dsp_id in listed {
            self.series.entry(dsp_id).or_insert_with(Series::listed);
        }
        if self.series.len() > KEPT_MAX {
            for (_, gone) in self.series.extract_if(|_, series| !series.is_listed) {
                sum(&mut self.other, &gone.outcomes);
            }
        }
    }
}

impl Dsps {
    /// Registers `producer_dsp_cookies_total{dsp,outcome}`.
    ///
    /// # Errors
    /// When it is registered already.
    pub fn register(registry: &Registry, shown: &Shown) -> prometheus::Result<Self> {
        // Twice as many as run at once, so that two running threads rarely share one.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shards = (0..SHARDS_MAX.min(2 * threads)).map(|_| Shard(Mutex::default()));
        let dsps = Self {
            shared: Arc::new(Shared {
                shards: shards.collect(),
                known: Mutex::default(),
                version: AtomicUsize::new(0),
                max: shown.max,
                is_open: AtomicBool::new(false),
            }),
        };
        dsps.show(shown);
        let read = dsps.clone();
        registry.read([DSP_COOKIES], move || vec![read.family()])?;
        Ok(dsps)
    }

    /// Updates the known DSPs of a connection, to be called before each burst.
    pub fn refresh(&self, known: &mut KnownDsps) {
        if known.version != self.shared.version.load(Ordering::Relaxed) {
            known.clone_from(&self.shared.known());
        }
    }

    /// Applies another list to the bursts that begin after it; [`Shown::max`] does not change.
    pub fn show(&self, shown: &Shown) {
        let shared = &*self.shared;
        let mut known = shared.known();
        for shard in &shared.shards {
            shard.counts().show(&shown.named);
        }
        shared.set_open(shown.named.is_empty());
        let listed = || Arc::new(shown.named.iter().copied().collect());
        let listed = shown.refuses_others.then(listed);
        if listed != known.listed {
            let version = known.version + 1;
            *known = KnownDsps { version, listed };
            shared.version.store(version, Ordering::Relaxed);
        }
    }

    /// Counts the requests of a burst and empties the tally; to be called when the cookies are in the log.
    pub fn add(&self, tally: &mut Tally) {
        if tally.len == 0 {
            return;
        }
        let shared = &*self.shared;
        let shard = shared.shard();
        let mut counts = shard.counts();
        let requests = tally.dsps.iter().zip(&tally.outcomes);
        for (&dsp_id, &outcome) in requests.take(tally.len) {
            let outcome = usize::from(outcome);
            if let Some(outcomes) = counts.listed(dsp_id) {
                outcomes[outcome] += 1;
                continue;
            }
            if shared.is_open.load(Ordering::Relaxed) {
                drop(counts);
                shared.enter(dsp_id);
                counts = shard.counts();
            }
            match counts.listed(dsp_id) {
                Some(outcomes) => outcomes[outcome] += 1,
                None => counts.other[outcome] += 1,
            }
        }
        drop(counts);
        tally.len = 0;
    }

    /// What came of each DSP: its name, requests accepted, requests rejected.
    pub(crate) fn requests(&self) -> Vec<(String, u64, u64)> {
        let each = self.sums().into_iter().map(|(dsp, outcomes)| {
            let (accepted, rejected) = (outcomes[ACCEPTED], &outcomes[ACCEPTED + 1..]);
            (dsp, accepted, rejected.iter().sum())
        });
        each.collect()
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
        let _unchanged = self.shared.known();
        let mut other = [0; OUTCOMES];
        let mut sums = BTreeMap::<u32, Outcomes>::new();
        for shard in &self.shared.shards {
            let counts = shard.counts();
            sum(&mut other, &counts.other);
            for (&dsp_id, series) in &counts.series {
                let of_dsp = sums.entry(dsp_id).or_insert([0; OUTCOMES]);
                sum(of_dsp, &series.outcomes);
            }
        }
        let none = sums
            .remove(&NONE)
            .filter(|none| none.iter().any(|&count| count > 0));
        let named = sums
            .into_iter()
            .map(|(dsp_id, sum)| (dsp_id.to_string(), sum));
        let none = none.map(|none| (NONE_LABEL.to_owned(), none));
        none.into_iter()
            .chain([("other".to_owned(), other)])
            .chain(named)
            .collect()
    }
}

impl Shared {
    fn shard(&self) -> &Shard {
        &self.shards[thread_number() % self.shards.len()]
    }

    fn known(&self) -> MutexGuard<'_, KnownDsps> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a new DSP a series, unless there is a list or no room.
    #[cold]
    fn enter(&self, dsp_id: u32) {
        let _changing = self.known();
        // Another thread may have changed this meanwhile.
        if self.is_open.load(Ordering::Relaxed) {
            for shard in &self.shards {
                let mut counts = shard.counts();
                counts.series.entry(dsp_id).or_insert_with(Series::listed);
            }
            self.set_open(true);
        }
    }

    /// Gives new DSPs a series from now on if there is no list and as long as there is room.
    fn set_open(&self, has_no_list: bool) {
        // One of the series is that of no DSP.
        let is_room = self.shards[0].counts().series.len() <= self.max;
        self.is_open
            .store(has_no_list && is_room, Ordering::Relaxed);
    }
}

impl Shard {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(sums: &mut Outcomes, counts: &Outcomes) {
    *sums = array::from_fn(|outcome| sums[outcome] + counts[outcome]);
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

#[cfg(test)]
mod tests;
