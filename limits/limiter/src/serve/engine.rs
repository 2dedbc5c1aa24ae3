//! The limiter core: all limits and counters behind one lock, without network, disk or clock.
//!
//! [`Engine`] serves all requests. The lock is held for one decision, for encoding what changed, or for one part of a
//! scan over the counters. The caller passes the time, in nanoseconds since the Unix epoch.
//!
//! # Persistence
//!
//! Each change is available as [records](Engine::take_changes). The caller writes the records before it sends the
//! response, and makes no further changes while it cannot write them.

mod bookings;
mod calls;
mod catalog;
mod exact_rules;
mod feedback;
mod from_call;
mod recent_usage;
mod records;
mod remaining;
mod remote;
mod usage_summary;

use std::{collections::HashSet, sync::Arc};

use limits::rules::NamedLimit;
use parking_lot::{Mutex, MutexGuard};

use self::{
    bookings::Bookings,
    catalog::{Catalog, Core},
    feedback::FeedbackTable,
    recent_usage::RecentUsage,
};
pub use self::{
    bookings::MAX_WAIT as GLOBAL_MAX_WAIT,
    catalog::{LIMIT_BYTES_MAX, LIMITS_MAX, checked},
    exact_rules::exact,
    feedback::Feedback,
    from_call::CallRule,
    records::{Changes, RestoreFailure, Restored},
    remote::PendingDecision,
    usage_summary::{LimitUsage, TopCounter, UsageSummary},
};

/// Counters checked for idleness at each [`tidy`](Engine::tidy). Calls wait until evictions are written: 2 ms per thousand.
const IDLE_SCAN_MAX: usize = 128;

/// Settings of an engine.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Maximum number of counters of all rules together.
    pub counters_max: usize,
    /// Maximum bytes of counters of variable size: sliding logs and step windows.
    pub counters_bytes_max: usize,
    /// Whether the server of `[sharing]` counts calls.
    pub counted_by_server: bool,
}

/// A limit and the counter of a call under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the limit.
    pub limit: String,
    /// Name of the counter; each counter has its own quota.
    pub counter: String,
}

/// The [cause](Slot::binding) of a delay by partner feedback.
pub const FEEDBACK: &str = "feedback";

/// Time reserved for a call, or the earliest time for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Start of the slot; equal to `now` if the call may proceed immediately.
    pub at: u64,
    /// Time of the decision, by the limiter's clock.
    pub now: u64,
    /// Cause of the delay, if any: `limit/rule`, or [`FEEDBACK`].
    pub binding: Option<Arc<str>>,
}

/// A limit, and a counter under it.
type CounterKey = (Arc<str>, Arc<str>);

/// Why a call is rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// No limit has this name.
    UnknownLimit(String),
    /// The limits of the call have too many rules together.
    TooManyRules,
    /// The rule in the call is missing or not applicable; with the reason.
    InvalidRule(String),
    /// The first slot is after the maximum wait. If a queue is full, the slot is the time at which it has capacity again.
    OverMaxWait(Slot),
    /// The call is for more requests than a rule ever grants in one burst.
    OverBurst {
        /// The rule.
        binding: Option<Arc<str>>,
        /// Its maximum burst.
        max_burst: u64,
    },
    /// The reported time of the call is in the future.
    TooEarly,
    /// The maximum number of counters is in use.
    CounterLimit,
}

/// Events under one limit since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reservations granted immediately.
    pub now: u64,
    /// Reservations granted for later.
    pub delayed: u64,
    /// Reservations refused.
    pub refused: u64,
    /// Delay queries.
    pub delays: u64,
    /// Reported calls that were counted.
    pub counted: u64,
    /// Reported calls too old to have an effect.
    pub too_old: u64,
    /// Reported calls rejected because their time is in the future.
    pub too_early: u64,
    /// Partner responses with status 429.
    pub outbound_429: u64,
    /// Partner responses that added a restriction.
    pub feedback_applied: u64,
}

/// All limits and counters; see the module documentation.
#[derive(Debug)]
pub struct Engine {
    state: Mutex<EngineState>,
}

#[derive(Debug)]
struct EngineState {
    core: Core,
    counted_by_server: bool,
    catalog: Catalog,
    /// The configured limits.
    limits: Vec<NamedLimit>,
    /// The limits created from rules in calls.
    call_limits: Vec<from_call::CallLimit>,
    feedback: FeedbackTable,
    /// Usage last reported by the sharing server, if one counts.
    recent_usage: RecentUsage,
    bookings: Bookings,
    /// Incremented by each change of the limits.
    version: u64,
    /// Changes [collected](Self::collect_changes) but not yet taken.
    changes: Changes,
}

impl Engine {
    /// Creates an engine with unused limits.
    pub fn new(options: Options, limits: &[NamedLimit]) -> Self {
        let mut core = Core::with_memory(options.counters_max, options.counters_bytes_max);
        core.track_changes();
        let mut state = EngineState {
            core,
            counted_by_server: options.counted_by_server,
            catalog: Catalog::default(),
            limits: Vec::new(),
            call_limits: Vec::new(),
            feedback: FeedbackTable::default(),
            recent_usage: RecentUsage::default(),
            bookings: Bookings::default(),
            version: 0,
            changes: Changes::new(),
        };
        // Restored records may have any time, so the clock starts at 0.
        state.change(limits, 0);
        let state = Mutex::new(state);
        Self { state }
    }

    /// Replaces the limits, which must be [`checked`]. [Saves](Self::save_sources) their sources in the same change, so
    /// that a restore gets both or neither. Usage is carried over as a number of requests.
    pub fn change(&self, limits: &[NamedLimit], sources: Vec<u8>, now: u64) {
        let mut state = self.state();
        state.change(limits, now);
        state.save_sources(sources);
    }

    /// Version of the limits: 1 at the start, incremented by each change.
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Frees the memory of expired restrictions and bookings, and of some idle counters. Optional: a full table evicts
    /// idle counters itself.
    pub fn tidy(&self, now: u64) {
        let mut state = self.state();
        state.feedback.expire(now);
        state.bookings.expire(now);
        state.core.evict_idle(IDLE_SCAN_MAX, now);
    }

    fn state(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock()
    }
}

impl EngineState {
    fn change(&mut self, limits: &[NamedLimit], now: u64) {
        self.limits = limits.to_vec();
        self.call_limits.retain(|limit| limit.is_based_on(limits));
        self.apply(now);
    }

    /// Activates the configured limits and those from calls.
    fn apply(&mut self, now: u64) {
        let now = now.max(self.core.clock());
        let limits = self.limits.iter().filter(|limit| !limit.from_call);
        let limits: Vec<NamedLimit> = limits
            .chain(self.call_limits.iter().map(|it| &it.limit))
            .cloned()
            .collect();
        self.core.clear_limits(&self.catalog.removed(&limits));
        let names: HashSet<&str> = limits.iter().map(|limit| &*limit.name).collect();
        self.feedback
            .set_limits(names.len(), |name| names.contains(name));
        // Records name limits and rules, so they are collected before the names change.
        self.collect_changes();
        self.catalog.change(&mut self.core, &limits, now);
        self.version += 1;
        self.recent_usage = RecentUsage::default();
    }
}
