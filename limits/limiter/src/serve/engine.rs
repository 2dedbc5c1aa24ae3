//! The limiter itself: all limits and counters behind one short lock, without a network, a disk or a clock.
//!
//! Every way to ask goes through [`Engine`]. Its methods never wait but for that lock, which
//! is held for one decision, to encode what changed, or for a part of the counters that a survey looks at. Time is what the caller says, in nanoseconds
//! since the Unix epoch.
//!
//! # What outlives the process
//!
//! The state that each change leaves is taken as [records](Engine::take_changes), which are written before the change is answered. While they cannot be
//! written, callers change nothing here.

mod ahead;
mod calls;
mod catalog;
mod counting;
mod from_call;
mod learned;
mod left;
mod records;
mod remote;
mod seen;
mod survey;

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use limits::rules::NamedLimit;

use self::{
    ahead::Ahead,
    catalog::{Catalog, Core},
    learned::Learned,
    seen::Seen,
};
pub use self::{
    ahead::MAX_WAIT as GLOBAL_MAX_WAIT,
    catalog::{LIMIT_BYTES_MAX, LIMITS_MAX, errors},
    counting::{Counting, exact, unfit},
    from_call::CallRule,
    learned::Said,
    left::Left,
    records::{Changes, RestoreFailed, Restored},
    remote::Asking,
    survey::{FullestCounter, LimitSurvey, Survey},
};

/// Counters that are looked at each time, for those that are idle.
const IDLE_LOOKED_AT: usize = 1_024;

/// What an engine is made with.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most counters of all rules together.
    pub counters_max: usize,
    /// Most bytes of those that keep more than a few numbers: logs and step windows.
    pub counters_bytes_max: usize,
    /// The longest that anything learned holds.
    pub feedback_ttl_max: Duration,
    /// Where calls are counted.
    pub counting: Counting,
    /// Whether [changes](Engine::take_changes) are taken.
    pub is_saved: bool,
}

/// One of the limits that a call is under, and whose counter it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The counter: each has an allowance of its own.
    pub counter: &'a str,
}

/// What makes a call wait. Prints as `limit/rule`, or `learned`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// A rule of a limit.
    Rule {
        /// The limit's name.
        limit: Arc<str>,
        /// The rule's.
        rule: Arc<str>,
    },
    /// What a partner's answer said.
    Learned,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { limit, rule } => write!(f, "{limit}/{rule}"),
            Self::Learned => f.write_str("learned"),
        }
    }
}

/// When a call may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The first moment, which is `now` when it may go at once.
    pub at: u64,
    /// What it was asked at, by the limiter's clock.
    pub now: u64,
    /// What it waits for.
    pub binding: Option<Binding>,
}

/// A limit, and a counter.
type Counter = (Arc<str>, Arc<str>);

/// Why a call gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// No limit has this name.
    UnknownLimit(String),
    /// The limits of the call have too many rules together.
    TooManyRules,
    /// The rule that the call says, or does not say, cannot hold for it; why.
    RuleOfCall(String),
    /// It would have to wait until this slot, longer than its maximum wait. A queue that is full says when there is room.
    OverMaxWait(Slot),
    /// It is for more requests than a rule ever lets go at once.
    TooMany {
        /// Which.
        binding: Option<Binding>,
        /// Most requests of one call.
        most: u64,
    },
    /// It is told of as made in the future.
    TooEarly,
    /// There are as many counters as there may be, and none of them is idle.
    NoRoom,
}

/// What was done under one limit since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reservations that may go at once.
    pub now: u64,
    /// Those that wait for a moment to come.
    pub delayed: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Times that somebody asked when a call could go.
    pub asked: u64,
    /// Calls told of that count.
    pub counted: u64,
    /// Those made too long ago to have an effect.
    pub too_old: u64,
    /// Those said to be made in the future.
    pub too_early: u64,
    /// Answers of partners with status 429.
    pub outbound_429: u64,
    /// Answers of partners that something was learned from.
    pub learned: u64,
}

/// All limits and counters; see the module.
#[derive(Debug)]
pub struct Engine {
    state: Mutex<State>,
    options: Options,
}

#[derive(Debug)]
struct State {
    core: Core,
    catalog: Catalog,
    /// The limits of the sources, and those that calls made.
    limits: Vec<NamedLimit>,
    of_calls: Vec<from_call::Made>,
    learned: Learned,
    counting: Counting,
    /// What a server said, if one counts.
    seen: Seen,
    ahead: Ahead,
    /// One more for each change of the limits.
    version: u64,
    /// The key of limits of every call.
    whole: Arc<str>,
    /// What changed, as far as it was [collected](Self::collect_changes).
    changes: Changes,
}

impl Engine {
    /// Limits of which nothing has been used.
    #[must_use]
    pub fn new(options: Options, limits: &[NamedLimit]) -> Self {
        let mut core = Core::with_memory(options.counters_max, options.counters_bytes_max);
        if options.is_saved {
            core.track_changes();
        }
        let mut state = State {
            core,
            catalog: Catalog::new(options.counting),
            limits: Vec::new(),
            of_calls: Vec::new(),
            learned: Learned::new(options.feedback_ttl_max, options.is_saved),
            counting: options.counting,
            seen: Seen::default(),
            ahead: Ahead::default(),
            version: 0,
            whole: Arc::from(""),
            changes: Changes::new(),
        };
        // The time of what is restored may be any.
        state.change(limits, 0);
        Self {
            state: Mutex::new(state),
            options,
        }
    }

    /// Takes other limits into force, which have no [`errors`], and [keeps](Self::keep) the sources that they are of: nothing is restored of the one without
    /// the other. What was used stays used, in requests.
    pub fn change(&self, limits: &[NamedLimit], sources: Vec<u8>, now: u64) {
        let mut state = self.state();
        state.change(limits, now);
        state.keep(sources);
    }

    /// How often the limits changed; 1 at the start.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Forgets what is over: what was learned, and some counters that are idle. They make room by themselves; this only gives memory back to
    /// others.
    pub fn tidy(&self, now: u64) {
        let mut state = self.state();
        state.learned.pass(now);
        state.ahead.pass(now, |_| true);
        state.core.evict_idle(IDLE_LOOKED_AT, now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn change(&mut self, limits: &[NamedLimit], now: u64) {
        self.limits = limits.to_vec();
        self.of_calls.retain(|made| from_call::is_of(limits, made));
        self.apply(now);
    }

    /// Takes into force what the sources and calls say.
    fn apply(&mut self, now: u64) {
        let now = now.max(self.core.clock());
        let limits = self.limits.iter().filter(|limit| !limit.from_call);
        let limits: Vec<NamedLimit> = limits
            .chain(self.of_calls.iter().map(|made| &made.limit))
            .cloned()
            .collect();
        self.core.clear_limits(&self.catalog.gone(&limits));
        let names: HashSet<&str> = limits.iter().map(|limit| &*limit.name).collect();
        self.learned
            .change(names.len(), |name| !names.contains(name));
        // While it has the names that this is known by.
        self.collect_changes();
        self.catalog.change(&mut self.core, &limits, now);
        self.version += 1;
        let global = self.catalog.global();
        self.ahead.pass(now, |limit| global.contains(limit));
        self.seen.clear();
    }
}
