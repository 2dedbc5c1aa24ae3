//! The meter of a limit: finds and takes slots in the state of one key, for any algorithm.
//!
//! All times are nanoseconds of one monotonic clock. A key that has been idle for long enough is equivalent to a new key, so idle keys can
//! be evicted.

/// Evaluates `$body` with the meters and the states of matching variants.
macro_rules! dispatch {
    ($kinds:tt, $states:tt, $names:tt => $body:expr) => {
        dispatch!($kinds, $states, $names => $body, unreachable!("a meter only uses states that it created"))
    };
    (($($kind:expr),+), ($($state:expr),+), ($($meter:ident),+; $($inner:ident),+) => $body:expr, $else:expr) => {
        match ($(&$kind,)+ $($state),+) {
            ($(Kind::Gcra($meter),)+ $(AlgorithmState::Gcra($inner)),+) => $body,
            ($(Kind::SteppedBucket($meter),)+ $(AlgorithmState::SteppedBucket($inner)),+) => $body,
            ($(Kind::FixedWindow($meter),)+ $(AlgorithmState::FixedWindow($inner)),+) => $body,
            ($(Kind::SlidingCounter($meter),)+ $(AlgorithmState::SlidingCounter($inner)),+) => $body,
            ($(Kind::SlidingLog($meter),)+ $(AlgorithmState::SlidingLog($inner)),+) => $body,
            ($(Kind::StepWindow($meter),)+ $(AlgorithmState::StepWindow($inner)),+) => $body,
            ($(Kind::WarmUp($meter),)+ $(AlgorithmState::WarmUp($inner)),+) => $body,
            _ => $else,
        }
    };
}

mod bookings;
mod change;
mod gcra;
mod sliding_log;
mod step_window;
mod stepped_bucket;
mod warm_up;
mod windows;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, default_step};

use bookings::Bookings;
pub use change::CarryOver;
use gcra::{Gcra, GcraState};
use sliding_log::{SlidingLog, SlidingLogState};
use step_window::{StepWindow, StepWindowState};
use stepped_bucket::{SteppedBucket, SteppedBucketState};
use warm_up::{WarmUp, WarmUpState};
use windows::{FixedWindow, FixedWindowState, SlidingCounter, SlidingCounterState};

/// An algorithm with its parameters, prepared for decisions.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    kind: Kind,
    /// Maximum number of requests of one call.
    max_burst: u64,
    /// Maximum wait in the queue of a leaky bucket, in nanoseconds; `u64::MAX` for other algorithms.
    pub(crate) queue_wait_max: u64,
}

#[derive(Debug, Clone)]
enum Kind {
    Gcra(Gcra),
    SteppedBucket(SteppedBucket),
    FixedWindow(FixedWindow),
    SlidingCounter(SlidingCounter),
    SlidingLog(SlidingLog),
    StepWindow(StepWindow),
    WarmUp(WarmUp),
}

/// The state of one key under one limit. It can be saved with `serde`, and restored under a limit with the same algorithm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyState {
    /// After all calls, including future slots.
    usage: Usage,
    /// Future slots with gaps before them, if there are any.
    bookings: Option<Box<Bookings>>,
}

/// The usage after a sequence of calls. It determines the earliest slot after the last of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Usage {
    state: AlgorithmState,
    /// The latest slot.
    last: u64,
}

/// Append new variants and never reorder them: like [`Algorithm`], a state is saved with the position of its variant.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum AlgorithmState {
    Gcra(GcraState),
    SteppedBucket(SteppedBucketState),
    FixedWindow(FixedWindowState),
    SlidingCounter(SlidingCounterState),
    // Boxed because these are larger than the others.
    SlidingLog(Box<SlidingLogState>),
    StepWindow(Box<StepWindowState>),
    WarmUp(WarmUpState),
}

/// The operations of one algorithm. CONTRIBUTING.md describes how to add an algorithm.
trait MeterKind {
    type State;

    /// The state of a new key.
    fn fresh(&self) -> Self::State;

    /// The earliest slot at or after `from` for `requests` requests.
    fn earliest(&self, state: &Self::State, requests: u64, from: u64) -> u64;

    /// Counts requests at `at`.
    fn charge(&self, state: &mut Self::State, requests: u64, at: u64);

    /// Counts reported calls at `at`. At most, they leave a bucket empty at `latest`; they never overdraw it. Windows
    /// cannot be overdrawn.
    fn charge_reported(&self, state: &mut Self::State, requests: u64, at: u64, _latest: u64) {
        self.charge(state, requests, at);
    }

    /// Refunds requests that were charged at `at`, as far as the earlier state is known.
    fn refund(&self, _state: &mut Self::State, _requests: u64, _at: u64) {}

    /// Whether both states lead to the same decisions from `at` on.
    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool;

    /// Whether the state is equivalent to that of a new key from `now` on.
    fn is_idle(&self, state: &Self::State, now: u64) -> bool;

    /// Number of requests in use at `now`: how many more a new key could make.
    fn used(&self, state: &Self::State, now: u64) -> u64;

    /// Maximum time for which a call affects decisions, if no call had to wait.
    fn lookback(&self) -> u64;

    /// Converts a state of the meter `from`; returns false if the two count in different windows.
    fn adopts(&self, _from: &Self, _state: &mut Self::State) -> bool {
        false
    }

    /// Whether a restored state is within the numeric bounds of this meter.
    fn is_valid(&self, _amount: &Self::State) -> bool {
        true
    }

    /// Gives a restored state the capacity of a new one.
    fn preallocate(&self, _state: &mut Self::State) {}
}

impl KeyState {
    /// Placeholder for a free entry.
    pub(crate) fn none() -> Self {
        let state = AlgorithmState::FixedWindow(FixedWindowState::default());
        Usage { state, last: 0 }.into()
    }

    /// Heap memory in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.usage.heap_bytes() + self.bookings_bytes()
    }

    /// Heap memory of the bookings in bytes.
    #[inline]
    pub(crate) fn bookings_bytes(&self) -> usize {
        self.bookings.as_ref().map_or(0, |it| it.heap_bytes())
    }

    /// The latest slot.
    pub(crate) fn latest(&self) -> u64 {
        self.usage.last
    }
}

impl From<Usage> for KeyState {
    fn from(usage: Usage) -> Self {
        Self {
            usage,
            bookings: None,
        }
    }
}

impl Usage {
    fn heap_bytes(&self) -> usize {
        match &self.state {
            // The boxes themselves are not counted: they have the same size under every limit, like table entries.
            AlgorithmState::SlidingLog(state) => state.heap_bytes(),
            AlgorithmState::StepWindow(state) => state.heap_bytes(),
            _ => 0,
        }
    }
}

impl Meter {
    /// The meter of an algorithm with checked parameters.
    pub(crate) fn new(algorithm: &Algorithm) -> Self {
        let mut queue_wait_max = u64::MAX;
        let kind = match *algorithm {
            Algorithm::TokenBucket { rate, burst } => Kind::Gcra(Gcra::new(rate, burst)),
            Algorithm::LeakyBucket { rate, capacity } => {
                let gcra = Gcra::new(rate, 1);
                queue_wait_max = gcra.nanos_of(capacity);
                Kind::Gcra(gcra)
            }
            Algorithm::SteppedBucket { rate, burst } => {
                Kind::SteppedBucket(SteppedBucket::new(rate, burst))
            }
            Algorithm::FixedWindow {
                limit,
                window,
                aligned,
            } => Kind::FixedWindow(FixedWindow::new(limit, window, aligned)),
            Algorithm::SlidingCounter { limit, window } => {
                Kind::SlidingCounter(SlidingCounter::new(limit, window))
            }
            Algorithm::SlidingLog { limit, window } => {
                Kind::SlidingLog(SlidingLog::new(limit, window))
            }
            Algorithm::StepWindow {
                limit,
                window,
                step,
            } => Kind::StepWindow(StepWindow::new(limit, window, step)),
            Algorithm::WarmUp { rate, warm_up } => Kind::WarmUp(WarmUp::new(rate, warm_up)),
        };
        Self {
            kind,
            max_burst: algorithm.max_burst(),
            queue_wait_max,
        }
    }

    /// Gives a restored state the capacity of a new one.
    pub(crate) fn preallocate(&self, state: &mut KeyState) {
        dispatch!((self.kind), (&mut state.usage.state), (meter; inner) => meter.preallocate(inner));
    }

    /// Whether a restored state belongs to this algorithm and is within its numeric bounds.
    pub(crate) fn is_valid(&self, state: &KeyState) -> bool {
        let is_valid = |usage: &Usage| dispatch!((self.kind), (&usage.state), (meter; inner) => meter.is_valid(inner), false);
        let can_hold = |it: &Bookings| is_valid(&it.before) && self.can_hold(it);
        is_valid(&state.usage) && state.bookings.as_deref().is_none_or(can_hold)
    }

    /// The state of a new key.
    pub(crate) fn fresh(&self) -> KeyState {
        self.fresh_usage().into()
    }

    fn fresh_usage(&self) -> Usage {
        let state = match &self.kind {
            Kind::Gcra(meter) => AlgorithmState::Gcra(meter.fresh()),
            Kind::SteppedBucket(meter) => AlgorithmState::SteppedBucket(meter.fresh()),
            Kind::FixedWindow(meter) => AlgorithmState::FixedWindow(meter.fresh()),
            Kind::SlidingCounter(meter) => AlgorithmState::SlidingCounter(meter.fresh()),
            Kind::SlidingLog(meter) => AlgorithmState::SlidingLog(Box::new(meter.fresh())),
            Kind::StepWindow(meter) => AlgorithmState::StepWindow(Box::new(meter.fresh())),
            Kind::WarmUp(meter) => AlgorithmState::WarmUp(meter.fresh()),
        };
        Usage { state, last: 0 }
    }

    /// Heap memory of each key in bytes, without bookings.
    pub(crate) fn bytes_per_key(&self) -> usize {
        self.fresh().heap_bytes()
    }

    /// Whether a call with this number of requests is ever admitted.
    #[inline]
    pub(crate) fn can_admit(&self, requests: u64) -> bool {
        requests <= self.max_burst
    }

    /// The earliest slot at or after `from` for requests that [can be admitted](Self::can_admit).
    #[inline]
    pub(crate) fn earliest(&self, state: &KeyState, requests: u64, from: u64) -> u64 {
        match (&self.kind, &state.usage.state, &state.bookings) {
            // The most frequent case.
            (Kind::Gcra(meter), AlgorithmState::Gcra(inner), None) => {
                meter.earliest(inner, requests, from.max(state.usage.last))
            }
            (_, _, bookings) => {
                let gap = bookings
                    .as_ref()
                    .and_then(|it| self.gap(it, requests, from));
                gap.unwrap_or_else(|| self.earliest_after(&state.usage, requests, from))
            }
        }
    }

    /// The earliest slot after all calls in `usage`.
    fn earliest_after(&self, usage: &Usage, requests: u64, from: u64) -> u64 {
        let from = from.max(usage.last);
        dispatch!((self.kind), (&usage.state), (meter; inner) => meter.earliest(inner, requests, from))
    }

    /// Takes an immediate slot in a token bucket without bookings, the most frequent case. Otherwise returns false and does nothing.
    #[inline]
    pub(crate) fn take_now(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) -> bool {
        let usage = &mut state.usage;
        match (&self.kind, &mut usage.state, &state.bookings) {
            (Kind::Gcra(meter), AlgorithmState::Gcra(inner), None) if at <= now => {
                if usage.last <= now {
                    meter.expire(inner, now);
                }
                meter.charge(inner, requests, at);
                usage.last = at;
                true
            }
            _ => false,
        }
    }

    /// Takes a slot that [`earliest`](Self::earliest) returned and that is [bookable](Self::bookable_at).
    pub(crate) fn take(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) {
        self.expire(state, now);
        if state.bookings.is_some() {
            self.insert(state, requests, at, now);
        } else if at > now {
            self.book(state, requests, at, now);
        } else {
            self.take_last(&mut state.usage, requests, at);
        }
    }

    /// Takes a slot after all others.
    fn take_last(&self, usage: &mut Usage, requests: u64, at: u64) {
        dispatch!((self.kind), (&mut usage.state), (meter; inner) => meter.charge(inner, requests, at));
        usage.last = at;
    }

    /// Whether both usages lead to the same decisions from `at` on.
    fn is_equivalent(&self, one: &Usage, other: &Usage, at: u64) -> bool {
        dispatch!((self.kind), (&one.state, &other.state), (meter; one, other) => meter.is_equivalent(one, other, at))
    }

    /// Counts requests at `at` whether or not they are admitted: refused calls, or usage carried over from another algorithm.
    pub(crate) fn charge(&self, state: &mut KeyState, requests: u64, at: u64) {
        // A call above the maximum burst delays later calls only as much as a call of the maximum burst.
        let requests = requests.min(self.max_burst);
        self.charge_with(state, at, |usage| {
            dispatch!((self.kind), (&mut usage.state), (meter; inner) => meter.charge(inner, requests, at));
        });
    }

    /// Counts reported calls at `at`. They empty a bucket or fill a queue, but never exceed it.
    pub(crate) fn charge_reported(&self, state: &mut KeyState, requests: u64, at: u64) {
        let queue = Some(self.queue_wait_max).filter(|it| *it < u64::MAX);
        let end = at.saturating_add(queue.unwrap_or(0));
        self.charge_with(state, at, |usage| {
            let latest = end.max(usage.last);
            dispatch!((self.kind), (&mut usage.state), (meter; inner) => meter.charge_reported(inner, requests, at, latest));
        });
    }

    /// Removes usage and bookings that cannot affect decisions from `now` on.
    #[inline]
    pub(crate) fn expire(&self, state: &mut KeyState, now: u64) {
        if state.bookings.is_some() {
            self.expire_bookings(state, now);
        }
        let usage = &mut state.usage;
        if let (Kind::Gcra(meter), AlgorithmState::Gcra(inner)) = (&self.kind, &mut usage.state)
            && usage.last <= now
        {
            meter.expire(inner, now);
        }
    }

    /// Whether the state is equivalent to that of a new key from `now` on.
    pub(crate) fn is_idle(&self, state: &KeyState, now: u64) -> bool {
        let Usage { state, last } = &state.usage;
        *last <= now && dispatch!((self.kind), (state), (meter; inner) => meter.is_idle(inner, now))
    }

    /// Number of requests in use at `now`, without future bookings: how many more a new key could make.
    pub(crate) fn used(&self, state: &KeyState, now: u64) -> u64 {
        match &state.bookings {
            Some(bookings) => self.used_of(&self.usage_at(bookings, now), now),
            None => self.used_of(&state.usage, now),
        }
    }

    fn used_of(&self, usage: &Usage, now: u64) -> u64 {
        dispatch!((self.kind), (&usage.state), (meter; inner) => meter.used(inner, now))
    }

    /// Tolerance for reported calls whose time is in the future: a step window's step, otherwise the default step for the lookback.
    pub(crate) fn step(&self) -> u64 {
        match &self.kind {
            Kind::StepWindow(meter) => meter.step(),
            _ => {
                let step = default_step(Duration::from_nanos(self.lookback()));
                u64::try_from(step.as_nanos()).expect("up to an hour")
            }
        }
    }

    /// Maximum time for which a call affects decisions, if no call had to wait.
    fn lookback(&self) -> u64 {
        match &self.kind {
            Kind::Gcra(meter) => meter.lookback(),
            Kind::SteppedBucket(meter) => meter.lookback(),
            Kind::FixedWindow(meter) => meter.lookback(),
            Kind::SlidingCounter(meter) => meter.lookback(),
            Kind::SlidingLog(meter) => meter.lookback(),
            Kind::StepWindow(meter) => meter.lookback(),
            Kind::WarmUp(meter) => meter.lookback(),
        }
    }

    /// Whether a call at `at` affects decisions at `now`.
    pub(crate) fn is_relevant(&self, at: u64, now: u64) -> bool {
        at.saturating_add(self.lookback()) > now
    }

    /// The time at which this meter counts a call that was made at `at` and reported at `now`.
    pub(crate) fn charge_time(&self, at: u64, now: u64) -> u64 {
        match &self.kind {
            Kind::StepWindow(_) => at,
            _ => now,
        }
    }
}
