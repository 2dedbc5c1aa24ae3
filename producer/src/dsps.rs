//! Counts requests by DSP and outcome: accepted, or the reason for the rejection.
//!
//! # Metric series
//!
//! Requests may contain any of four billion DSP ids, so the number of series is bounded. If contracts list DSPs, each of
//! them has a series. Without a list, the first `UNLISTED_SERIES_MAX` DSPs get a series; a client can exhaust these
//! series with fake DSP ids. All other DSPs are counted as `other`, and requests with an invalid DSP id as `none`.
//!
//! The contracts can be reloaded. A DSP that is removed from the list keeps its series. If a reload would exceed
//! `SERIES_MAX` series, the series of DSPs that earlier reloads removed are added to `other`.
//!
//! # Cost
//!
//! Each batch clears a [`Tally`] of 320 bytes, and each request writes to it once. After the batch is in the log, each
//! request costs one lookup and one addition to a counter that other threads rarely write. There is no lock: each
//! connection has a handle to an immutable table, which is replaced when it changes. `edge/connection.rs` gives
//! measurements.

use std::{
    array,
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use metric_defs::producer::{
    CONTRACTS_REFUSED_VERSION, CONTRACTS_VERSION, DSP_CONTRACT, DSP_COOKIES, DSP_WOULD_REFUSE,
};
use parking_lot::Mutex;
use proto::{limits::CONTRACTS_MAX, units::DspId};
use runtime::metrics::{Family, Registry, as_f64, family, value};

use crate::contracts::{Contracts, file::ContractsFile, rejection::Rejection, verdict::Verdict};

/// Maximum number of series without a list.
const UNLISTED_SERIES_MAX: usize = 64;

/// Maximum number of series after a reload of the list. Each takes 8 bytes per outcome and shard, rounded up to 128.
const SERIES_MAX: usize = 3 * CONTRACTS_MAX;

/// Maximum number of shards of a series. With more threads, some threads share a shard.
const SHARDS_MAX: usize = 64;

/// Maximum number of outcomes in a tally. A batch is full after fewer accepted cookies.
const TALLY_MAX: usize = 64;

/// Index of accepted requests. The index of a rejection is its discriminant plus one.
const ACCEPTED: usize = 0;

/// Index of the first rejection that is only observed. Such requests are accepted, so they have two or more outcomes.
const WOULD_REFUSE: usize = 1 + Rejection::ALL.len();
const OUTCOMES: usize = WOULD_REFUSE + OBSERVED.len();

/// Rejections that may be only observed, by their causes.
const OBSERVED: [Rejection; 5] = [
    Rejection::BuyerMacro,
    Rejection::BuyerSentinel,
    Rejection::BuyerTooLongForDsp,
    Rejection::BuyerPattern,
    Rejection::Privacy,
];

/// Represents an invalid DSP id; no DSP has this id.
const NONE: DspId = DspId::NONE;
const NONE_LABEL: &str = "none";

/// A connection's handle to the table of DSPs.
#[derive(Debug, Clone, Default)]
pub struct KnownDsps(Arc<DspTable>);

impl KnownDsps {
    /// All contracts.
    pub fn contracts(&self) -> &Contracts {
        &self.0.contracts
    }
}

/// All series by DSP.
#[derive(Debug, Clone, Default)]
struct DspTable {
    version: usize,
    contracts: Arc<Contracts>,
    /// 1 at the start, incremented by each reload; 0 without a contracts file.
    contracts_version: u64,
    /// Listed DSPs, or without a list the first DSPs seen.
    series: HashMap<DspId, Arc<Series>, RandomState>,
}

impl DspTable {
    /// Whether a DSP without a series gets one when it is first seen.
    fn is_open(&self) -> bool {
        self.contracts.listed().len() == 0 && self.series.len() < UNLISTED_SERIES_MAX
    }
}

/// Requests of one batch that are not counted yet.
#[derive(Debug)]
pub struct Tally {
    dsps: [DspId; TALLY_MAX],
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
    /// Whether it must be [added](Dsps::add) before the next request.
    pub fn is_full(&self) -> bool {
        // A request has up to three outcomes.
        self.len + 3 > TALLY_MAX
    }

    /// Notes a request with a valid match.
    ///
    /// # Panics
    /// When the tally is full.
    #[inline]
    pub fn note(&mut self, dsp_id: DspId, verdict: Verdict) {
        match verdict {
            Verdict::Record(observed) => {
                self.note_observed(dsp_id, observed);
                self.push(dsp_id, ACCEPTED);
            }
            Verdict::Refuse(rejection) => self.note_rejected(Some(dsp_id), rejection),
        }
    }

    /// Notes a rejected request; `dsp_id` is `None` if it was invalid.
    ///
    /// # Panics
    /// When the tally is full.
    pub fn note_rejected(&mut self, dsp_id: Option<DspId>, rejection: Rejection) {
        self.push(dsp_id.unwrap_or(NONE), 1 + rejection as usize);
    }

    /// Notes rejections of a recorded match that are only observed.
    ///
    /// # Panics
    /// When the tally is full.
    #[inline]
    pub fn note_observed(&mut self, dsp_id: DspId, observed: [Option<Rejection>; 2]) {
        for rejection in observed.into_iter().flatten() {
            if let Some(index) = OBSERVED.iter().position(|it| *it == rejection) {
                self.push(dsp_id, WOULD_REFUSE + index);
            }
        }
    }

    /// The DSP of the newest request; `None` if it was invalid.
    pub fn last_dsp(&self) -> Option<DspId> {
        let last = self.dsps[..self.len].last();
        last.copied().filter(|&dsp_id| dsp_id != NONE)
    }

    fn push(&mut self, dsp_id: DspId, outcome: usize) {
        let outcome = u8::try_from(outcome).expect("fewer than 256 outcomes");
        self.dsps[self.len] = dsp_id;
        self.outcomes[self.len] = outcome;
        self.len += 1;
    }
}

/// Counters of all DSPs of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Dsps {
    shared: Arc<DspsShared>,
}

#[derive(Debug)]
struct DspsShared {
    /// The contracts file, if there is one.
    file: Option<ContractsFile>,
    table: Mutex<Arc<DspTable>>,
    /// Version of the table, readable without the lock.
    version: AtomicUsize,
    other: Series,
    none: Series,
}

/// Number of requests by outcome.
type Outcomes = [u64; OUTCOMES];

/// Counters of one DSP.
#[derive(Debug)]
struct Series(Box<[Shard]>);

/// Counters of some threads, on separate cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Shard([AtomicU64; OUTCOMES]);

impl Default for Series {
    fn default() -> Self {
        // Twice the number of concurrent threads, so that two of them rarely share a shard.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shards = 0..SHARDS_MAX.min(2 * threads);
        let zeros = || Shard(array::from_fn(|_| AtomicU64::new(0)));
        Self(shards.map(|_| zeros()).collect())
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
    /// Registers `producer_dsp_cookies_total{dsp,outcome}` and the metrics of contracts.
    ///
    /// # Errors
    /// When a metric is registered already.
    pub fn register(
        registry: &Registry,
        file: Option<ContractsFile>,
        contracts: Arc<Contracts>,
    ) -> prometheus::Result<Self> {
        let has_file = file.is_some();
        let dsps = Self {
            shared: Arc::new(DspsShared {
                file,
                table: Mutex::default(),
                version: AtomicUsize::new(0),
                other: Series::default(),
                none: Series::default(),
            }),
        };
        dsps.set_contracts(contracts);
        dsps.shared
            .change(|table| table.contracts_version = u64::from(has_file));
        let read = dsps.clone();
        registry.read(move || read.families())?;
        Ok(dsps)
    }

    /// Updates the handle of a connection; to be called before each batch.
    pub fn refresh(&self, known: &mut KnownDsps) {
        if known.0.version != self.shared.version.load(Ordering::Relaxed) {
            known.0 = Arc::clone(&self.shared.table.lock());
        }
    }

    /// The DSPs that are known now.
    pub fn known(&self) -> KnownDsps {
        let mut known = KnownDsps::default();
        self.refresh(&mut known);
        known
    }

    /// Replaces the contracts. Each connection applies the new ones from its next batch on.
    pub fn set_contracts(&self, contracts: Arc<Contracts>) {
        let shared = &*self.shared;
        shared.change(|table| {
            if table.series.len() + contracts.listed().len() > SERIES_MAX {
                // Keep the DSPs that this reload removes: a batch in progress may still count for them.
                let before = Arc::clone(&table.contracts);
                let is_old = |dsp_id: &DspId| !before.lists(*dsp_id) && !contracts.lists(*dsp_id);
                for (_, removed) in table.series.extract_if(|dsp_id, _| is_old(dsp_id)) {
                    for (outcome, count) in removed.sums().into_iter().enumerate() {
                        shared.other.add(0, outcome, count);
                    }
                }
            }
            for (dsp_id, _) in contracts.listed() {
                table.series.entry(dsp_id).or_default();
            }
            table.contracts = contracts;
            table.contracts_version += 1;
        });
    }

    /// A number of the contents of the contracts file, the same at each producer; `None` without a contracts file.
    pub(crate) fn contracts_fingerprint(&self) -> Option<String> {
        let file = self.shared.file.as_ref()?;
        Some(format!("{:016x}", file.fingerprint()))
    }

    /// One-line description of the contracts for `/readyz`; `None` without a contracts file.
    pub(crate) fn describe_contracts(&self) -> Option<String> {
        let error = self.shared.file.as_ref()?.error();
        let error = error.map(|error| format!(", but the newest version is invalid: {error}"));
        let version = self.shared.table.lock().contracts_version;
        let error = error.unwrap_or_default();
        Some(format!("version {version} is active{error}"))
    }

    /// Counts the requests of a batch and empties the tally; to be called after the cookies are in the log.
    pub fn add(&self, tally: &mut Tally, known: &mut KnownDsps) {
        let shared = &*self.shared;
        let thread = thread_number();
        let requests = tally.dsps.iter().zip(&tally.outcomes);
        for (&dsp_id, &outcome) in requests.take(tally.len) {
            let mut series = known.0.series.get(&dsp_id);
            if series.is_none() && dsp_id != NONE && known.0.is_open() {
                shared.add_series(dsp_id);
                self.refresh(known);
                series = known.0.series.get(&dsp_id);
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

    /// Samples of accepted requests of all DSPs, of rejections that occurred, and of the contracts in effect.
    pub(crate) fn families(&self) -> Vec<Family> {
        let sums = self.sums();
        let counts = |range: Range<usize>| {
            sums.iter().flat_map(move |(dsp, outcomes)| {
                let counted = range.clone().filter(move |&outcome| {
                    outcomes[outcome] > 0 || (outcome == ACCEPTED && dsp != NONE_LABEL)
                });
                let sample =
                    |outcome| ([&**dsp, outcome_label(outcome)], as_f64(outcomes[outcome]));
                counted.map(sample)
            })
        };
        let table = Arc::clone(&self.shared.table.lock());
        let version = (table.contracts_version > 0).then(|| as_f64(table.contracts_version));
        let file = self.shared.file.as_ref();
        let refused = file.map(|it| f64::from(u8::from(it.error().is_some())));
        let listed = table.contracts.listed();
        let named: Vec<_> = listed
            .map(|(dsp_id, it)| (dsp_id.to_string(), it))
            .collect();
        let named = named.iter();
        let named = named.map(|(dsp, it)| ([&**dsp, &*it.name, it.state.name()], 1.0));
        vec![
            family(DSP_COOKIES, counts(0..WOULD_REFUSE)),
            family(DSP_WOULD_REFUSE, counts(WOULD_REFUSE..OUTCOMES)),
            family(DSP_CONTRACT, named),
            value(CONTRACTS_VERSION, version),
            value(CONTRACTS_REFUSED_VERSION, refused),
        ]
    }

    /// Totals of all series, by label.
    fn sums(&self) -> Vec<(String, Outcomes)> {
        let shared = &*self.shared;
        let table = Arc::clone(&shared.table.lock());
        let by_dsp: BTreeMap<_, _> = table.series.iter().collect();
        let by_dsp = by_dsp
            .into_iter()
            .map(|(dsp_id, series)| (dsp_id.to_string(), series.sums()));
        let none = shared.none.sums();
        let has_none = none.iter().any(|&count| count > 0);
        let none = has_none.then(|| (NONE_LABEL.to_owned(), none));
        none.into_iter()
            .chain([("other".to_owned(), shared.other.sums())])
            .chain(by_dsp)
            .collect()
    }
}

impl DspsShared {
    /// Replaces the table with a changed copy.
    fn change(&self, change: impl FnOnce(&mut DspTable)) {
        let mut table = self.table.lock();
        let mut changed = DspTable::clone(&table);
        change(&mut changed);
        changed.version += 1;
        self.version.store(changed.version, Ordering::Relaxed);
        *table = Arc::new(changed);
    }

    /// Adds a series for a new DSP, if the table is open.
    #[cold]
    fn add_series(&self, dsp_id: DspId) {
        self.change(|table| {
            // Another thread may have changed the table.
            if table.is_open() {
                table.series.entry(dsp_id).or_default();
            }
        });
    }
}

fn outcome_label(outcome: usize) -> &'static str {
    match outcome.checked_sub(1) {
        None => "accepted",
        Some(index) => match index.checked_sub(Rejection::ALL.len()) {
            None => Rejection::ALL[index].label(),
            Some(index) => OBSERVED[index].label(),
        },
    }
}

/// Number of this thread, assigned at its first use.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests;
