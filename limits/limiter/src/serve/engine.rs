//! The limiter itself: all limits and counters behind one short lock, without a network, a disk or a clock.
//!
//! Every way to ask goes through [`Engine`]. Its methods never wait but for that lock, which
//! is held for one decision, for a snapshot, or for a part of the counters that a survey looks at. Time is what the caller says, in nanoseconds
//! since the Unix epoch.
//!
//! # What outlives the process
//!
//! A [snapshot](Engine::snapshot), and a journal of the changes since: each is written before it is answered, in order, so a limiter that was killed
//! goes on exactly where it was. The system keeps what was written; a machine that fails loses what was not synced. A limiter that cannot write grants
//! nothing until a snapshot has been made.

mod ahead;
mod calls;
mod catalog;
mod changes;
mod counting;
mod from_call;
mod journal;
mod learned;
mod left;
mod remote;
mod saving;
mod seen;
mod snapshot;
mod survey;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use limits::rules::NamedLimit;
use tokio::sync::Notify;

use self::{
    ahead::Ahead,
    catalog::{Catalog, Core},
    journal::Journal,
    learned::Learned,
    seen::Seen,
};
pub use self::{
    ahead::HORIZON as EVERY_CALL_HORIZON,
    catalog::{LIMIT_BYTES_MAX, LIMITS_MAX, mistakes},
    counting::{Counting, exact, unfit},
    from_call::CallRule,
    learned::Said,
    left::Left,
    remote::Asking,
    saving::{RestoreFailed, Restored},
    snapshot::Unreadable,
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
    pub learned_max: Duration,
    /// Where calls are counted.
    pub counting: Counting,
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

/// A limit's place, and a counter.
type Counter = (u32, Arc<str>);

/// Why a call gets no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// No limit has this name.
    UnknownLimit(String),
    /// The limits of the call have too many rules together.
    TooManyRules,
    /// The rule that the call says, or does not say, cannot hold for it; why.
    RuleOfCall(String),
    /// It would have to wait until this slot, longer than its horizon. A queue that is full says when there is room.
    OverHorizon(Slot),
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
    /// What it changes cannot be written.
    NotSaved,
    /// The limiter is being stopped.
    Stopping,
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
    snapshot_wanted: Arc<Notify>,
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
    journal: Journal,
    ahead: Ahead,
    /// By the places of limits.
    counts: Vec<Counts>,
    /// One more for each change of the limits.
    version: u64,
    /// The key of limits of every call.
    whole: Arc<str>,
    is_over: bool,
    snapshot_bytes: usize,
    /// Kept for others; see [`Engine::keep`].
    sources: Arc<[u8]>,
}

impl Engine {
    /// Limits of which nothing has been used.
    #[must_use]
    pub fn new(options: Options, limits: &[NamedLimit]) -> Self {
        let journal = Journal::default();
        let snapshot_wanted = Arc::clone(&journal.snapshot_wanted);
        let mut state = State {
            core: Core::with_memory(options.counters_max, options.counters_bytes_max),
            catalog: Catalog::new(options.counting),
            limits: Vec::new(),
            of_calls: Vec::new(),
            learned: Learned::new(options.learned_max),
            counting: options.counting,
            seen: Seen::default(),
            journal,
            ahead: Ahead::default(),
            counts: Vec::new(),
            version: 0,
            whole: Arc::from(""),
            is_over: false,
            snapshot_bytes: 0,
            sources: Arc::default(),
        };
        // The time of what is restored may be any.
        state.change(limits, 0);
        Self {
            state: Mutex::new(state),
            snapshot_wanted,
            options,
        }
    }

    /// Takes other limits into force, which have no [`mistakes`]. What was used stays used, in requests. A snapshot should follow.
    pub fn change(&self, limits: &[NamedLimit], now: u64) {
        self.state().change(limits, now);
        self.snapshot_wanted.notify_one();
    }

    /// The same, and [keeps](Self::keep) other sources with them: nothing is restored of the one without the other.
    pub fn change_and_keep(&self, limits: &[NamedLimit], sources: Arc<[u8]>, now: u64) {
        let mut state = self.state();
        state.change(limits, now);
        state.sources = sources;
        // Before anything is granted under them: a start that did not know them would drop it.
        state.write_sources(now);
        self.snapshot_wanted.notify_one();
    }

    /// How often the limits changed; 1 at the start.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state().version
    }

    /// Waits until a snapshot should be made before long.
    pub async fn snapshot_wanted(&self) {
        self.snapshot_wanted.notified().await;
    }

    /// Why changes cannot be written, if so.
    #[must_use]
    pub fn journal_error(&self) -> Option<String> {
        self.state().journal.error().map(ToString::to_string)
    }

    /// Has a snapshot made before long.
    pub fn want_snapshot(&self) {
        self.snapshot_wanted.notify_one();
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Grants nothing more: what is saved from now on is all there is.
    pub fn close(&self) {
        self.state().is_over = true;
    }

    /// Forgets what is over: what was learned, and some counters that are idle. They make room by themselves; this only gives memory back to
    /// others.
    pub fn tidy(&self, now: u64) {
        self.state().tidy(IDLE_LOOKED_AT, now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tidy(&mut self, looked_at: usize, now: u64) {
        self.learned.pass(now);
        self.ahead.pass(now, |_| true);
        self.core.forget_idle(looked_at, now);
    }

    fn change(&mut self, limits: &[NamedLimit], now: u64) {
        self.limits = limits.to_vec();
        self.of_calls.retain(|made| from_call::is_of(limits, made));
        self.apply(now);
    }

    /// Takes into force what the sources and calls say.
    fn apply(&mut self, now: u64) {
        let now = now.max(self.core.clock());
        let before: Vec<Option<Arc<str>>> = self.names();
        let limits = self.limits.iter().filter(|limit| !limit.from_call);
        let limits: Vec<NamedLimit> = limits
            .chain(self.of_calls.iter().map(|made| &made.limit))
            .cloned()
            .collect();
        self.catalog.change(&mut self.core, &limits, now);
        self.version += 1;
        let after = self.names();
        self.counts.resize(after.len(), Counts::default());
        let is_other = |place: u32| {
            let [before, after] = [&before, &after].map(|it| it.get(place as usize).cloned());
            before.flatten() != after.flatten()
        };
        for place in 0..u32::try_from(after.len()).unwrap_or(u32::MAX) {
            if is_other(place) {
                self.counts[place as usize] = Counts::default();
            }
        }
        let every_call = self.catalog.every_call();
        self.ahead
            .pass(now, |it| every_call.contains(&it) && !is_other(it));
        self.learned.change(limits.len(), is_other);
        self.seen.clear();
    }

    /// The names by place.
    fn names(&self) -> Vec<Option<Arc<str>>> {
        let mut names = vec![None; self.catalog.places()];
        for (place, named) in self.catalog.all() {
            names[place as usize] = Some(Arc::clone(&named.name));
        }
        names
    }
}
