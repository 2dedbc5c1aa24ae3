//! The state that one limit keeps for one key, whatever its algorithm: when may the next go, and take it.
//!
//! All times are nanoseconds on one clock that does not go back. A state that was never used is the same as one that has
//! been idle for long enough, so idle states can be forgotten.

/// `$body` for the methods of kinds and the amounts that fit them.
macro_rules! fitting {
    ($kinds:tt, $amounts:tt, $names:tt => $body:expr) => {
        fitting!($kinds, $amounts, $names => $body, unreachable!("an amount is made and changed by its meter"))
    };
    (($($kind:expr),+), ($($amount:expr),+), ($($meter:ident),+; $($inner:ident),+) => $body:expr, $else:expr) => {
        match ($(&$kind,)+ $($amount),+) {
            ($(Kind::Gcra($meter),)+ $(Amount::Gcra($inner)),+) => $body,
            ($(Kind::Stepped($meter),)+ $(Amount::Stepped($inner)),+) => $body,
            ($(Kind::Fixed($meter),)+ $(Amount::Fixed($inner)),+) => $body,
            ($(Kind::Counter($meter),)+ $(Amount::Counter($inner)),+) => $body,
            ($(Kind::Log($meter),)+ $(Amount::Log($inner)),+) => $body,
            ($(Kind::Steps($meter),)+ $(Amount::Steps($inner)),+) => $body,
            ($(Kind::WarmUp($meter),)+ $(Amount::WarmUp($inner)),+) => $body,
            _ => $else,
        }
    };
}

mod booked;
mod change;
mod gcra;
mod log;
mod stepped;
mod steps;
mod warm_up;
mod windows;

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, default_step};

use booked::Booked;
pub use change::CarryOver;
use gcra::{Gcra, Pace};
use log::{Log, Logged};
use stepped::{Stepped, Tokens};
use steps::{Counted, Steps};
use warm_up::{Heat, WarmUp};
use windows::{Counter, Counts, Fixed, Window};

/// An algorithm with its numbers in the form that a decision needs.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    kind: Kind,
    /// Most requests of one call.
    most: u64,
    /// The longest that a call may wait for this limit, in nanoseconds.
    pub(crate) timeout: u64,
}

#[derive(Debug, Clone)]
enum Kind {
    Gcra(Gcra),
    Stepped(Stepped),
    Fixed(Fixed),
    Counter(Counter),
    Log(Log),
    Steps(Steps),
    WarmUp(WarmUp),
}

/// What a limit keeps for one key. `serde` saves it in any form; only a limit of the same algorithm understands it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KeyState {
    /// By all that was given out.
    used: Used,
    /// None while there is no room before any of that.
    booked: Option<Box<Booked>>,
}

/// What calls used, by which is known when the next may go after the latest of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Used {
    amount: Amount,
    /// The latest moment that was given out.
    last: u64,
}

/// Append new variants and never reorder them: a saved state has the position of its variant, as that of [`Algorithm`].
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Amount {
    Gcra(Pace),
    Stepped(Tokens),
    Fixed(Window),
    Counter(Counts),
    // Larger than all others.
    Log(Box<Logged>),
    Steps(Box<Counted>),
    WarmUp(Heat),
}

/// What an algorithm does with what it keeps for one key. A new algorithm is a file with this, a [`Kind`] and an [`Amount`] here, and an
/// [`Algorithm`].
trait Method {
    type Amount;

    /// What was never used.
    fn fresh(&self) -> Self::Amount;

    /// The first moment from `from` on at which so many may go.
    fn earliest(&self, amount: &Self::Amount, requests: u64, from: u64) -> u64;

    /// Counts so many as made at `at`.
    fn force(&self, amount: &mut Self::Amount, requests: u64, at: u64);

    /// The same for calls that were made without having been asked for, as far as they have an effect: a bucket is empty at worst, at
    /// `latest`. Windows end by themselves.
    fn tell(&self, amount: &mut Self::Amount, requests: u64, at: u64, _latest: u64) {
        self.force(amount, requests, at);
    }

    /// Gives back what was taken at `at`, as far as it is known how it was before.
    fn give_back(&self, _amount: &mut Self::Amount, _requests: u64, _at: u64) {}

    /// Whether what follows at `at` is the same after both.
    fn is_same(&self, one: &Self::Amount, other: &Self::Amount, at: u64) -> bool;

    /// Whether it is as one that was never used, from `now` on.
    fn is_idle(&self, amount: &Self::Amount, now: u64) -> bool;

    /// How many requests are used at `now`: those that a fresh one could take more.
    fn used(&self, amount: &Self::Amount, now: u64) -> u64;

    /// How long a call matters at most, where nothing but calls that may go at once were made.
    fn reach(&self) -> u64;

    /// Takes over an amount of `from`, if it was counted in the same windows.
    fn takes_over(&self, _from: &Self, _amount: &mut Self::Amount) -> bool {
        false
    }

    /// Whether it can reckon with the numbers of one that was saved.
    fn fits(&self, _amount: &Self::Amount) -> bool {
        true
    }

    /// Gives one that was restored the room of a fresh one.
    fn reserve(&self, _amount: &mut Self::Amount) {}
}

impl KeyState {
    /// Of an entry that is free.
    pub(crate) fn none() -> Self {
        Used::from(Amount::Fixed(Window::default())).into()
    }

    /// What it has beside itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.used.heap_bytes() + self.booked_bytes()
    }

    /// The same, for what there is room before.
    #[inline]
    pub(crate) fn booked_bytes(&self) -> usize {
        self.booked.as_ref().map_or(0, |it| it.heap_bytes())
    }

    /// The latest moment that was given out.
    pub(crate) fn latest(&self) -> u64 {
        self.used.last
    }
}

impl From<Amount> for Used {
    fn from(amount: Amount) -> Self {
        Self { amount, last: 0 }
    }
}

impl From<Used> for KeyState {
    fn from(used: Used) -> Self {
        Self { used, booked: None }
    }
}

impl Used {
    fn heap_bytes(&self) -> usize {
        match &self.amount {
            // Their boxes are of the same size whatever the limit is, as places are.
            Amount::Log(logged) => logged.heap_bytes(),
            Amount::Steps(counted) => counted.heap_bytes(),
            _ => 0,
        }
    }
}

impl Meter {
    /// Of a checked algorithm.
    pub(crate) fn new(algorithm: &Algorithm) -> Self {
        let mut timeout = u64::MAX;
        let kind = match *algorithm {
            Algorithm::TokenBucket { rate, burst } => Kind::Gcra(Gcra::new(rate, burst)),
            Algorithm::LeakyBucket { rate, capacity } => {
                let gcra = Gcra::new(rate, 1);
                timeout = gcra.time_of(capacity);
                Kind::Gcra(gcra)
            }
            Algorithm::SteppedBucket { rate, burst } => Kind::Stepped(Stepped::new(rate, burst)),
            Algorithm::FixedWindow {
                limit,
                window,
                aligned,
            } => Kind::Fixed(Fixed::new(limit, window, aligned)),
            Algorithm::SlidingCounter { limit, window } => {
                Kind::Counter(Counter::new(limit, window))
            }
            Algorithm::SlidingLog { limit, window } => Kind::Log(Log::new(limit, window)),
            Algorithm::StepWindow {
                limit,
                window,
                step,
            } => Kind::Steps(Steps::new(limit, window, step)),
            Algorithm::WarmUp { rate, warm_up } => Kind::WarmUp(WarmUp::new(rate, warm_up)),
        };
        Self {
            kind,
            most: algorithm.max_burst(),
            timeout,
        }
    }

    /// Gives a state that was restored the room of a fresh one.
    pub(crate) fn reserve(&self, state: &mut KeyState) {
        fitting!((self.kind), (&mut state.used.amount), (meter; inner) => meter.reserve(inner));
    }

    /// Whether a state is of this algorithm, with numbers that it can reckon with.
    pub(crate) fn fits(&self, state: &KeyState) -> bool {
        let fits = |used: &Used| fitting!((self.kind), (&used.amount), (meter; inner) => meter.fits(inner), false);
        let booked_fits = |it: &Booked| fits(&it.before) && self.can_keep(it);
        fits(&state.used) && state.booked.as_deref().is_none_or(booked_fits)
    }

    /// A state that was never used.
    pub(crate) fn fresh(&self) -> KeyState {
        self.fresh_used().into()
    }

    fn fresh_used(&self) -> Used {
        let amount = match &self.kind {
            Kind::Gcra(meter) => Amount::Gcra(meter.fresh()),
            Kind::Stepped(meter) => Amount::Stepped(meter.fresh()),
            Kind::Fixed(meter) => Amount::Fixed(meter.fresh()),
            Kind::Counter(meter) => Amount::Counter(meter.fresh()),
            Kind::Log(meter) => Amount::Log(Box::new(meter.fresh())),
            Kind::Steps(meter) => Amount::Steps(Box::new(meter.fresh())),
            Kind::WarmUp(meter) => Amount::WarmUp(meter.fresh()),
        };
        amount.into()
    }

    /// What each state has beside itself.
    pub(crate) fn bytes_each(&self) -> usize {
        self.fresh().heap_bytes()
    }

    /// Whether a call for so many can ever pass.
    #[inline]
    pub(crate) fn can_pass(&self, requests: u64) -> bool {
        requests <= self.most
    }

    /// The first moment from `from` on at which so many may go, of what [`can_pass`](Self::can_pass).
    #[inline]
    pub(crate) fn earliest(&self, state: &KeyState, requests: u64, from: u64) -> u64 {
        match (&self.kind, &state.used.amount, &state.booked) {
            // By far the most.
            (Kind::Gcra(meter), Amount::Gcra(pace), None) => {
                meter.earliest(pace, requests, from.max(state.used.last))
            }
            (_, _, booked) => {
                let gap = booked.as_ref().and_then(|it| self.gap(it, requests, from));
                gap.unwrap_or_else(|| self.next(&state.used, requests, from))
            }
        }
    }

    /// The same after all that was given out.
    fn next(&self, used: &Used, requests: u64, from: u64) -> u64 {
        let from = from.max(used.last);
        fitting!((self.kind), (&used.amount), (meter; inner) => meter.earliest(inner, requests, from))
    }

    /// Takes so many at once from a bucket without bookings, as by far the most calls do; else says no, and does nothing.
    #[inline]
    pub(crate) fn take_now(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) -> bool {
        let used = &mut state.used;
        match (&self.kind, &mut used.amount, &state.booked) {
            (Kind::Gcra(meter), Amount::Gcra(pace), None) if at <= now => {
                if used.last <= now {
                    meter.pass(pace, now);
                }
                meter.force(pace, requests, at);
                used.last = at;
                true
            }
            _ => false,
        }
    }

    /// Takes so many at a moment that [`earliest`](Self::earliest) gave, and that can be [remembered](Self::remembered_at).
    pub(crate) fn take(&self, state: &mut KeyState, requests: u64, at: u64, now: u64) {
        self.pass(state, now);
        if state.booked.is_some() {
            self.take_between(state, requests, at, now);
        } else if at > now {
            self.book(state, requests, at, now);
        } else {
            self.take_used(&mut state.used, requests, at);
        }
    }

    fn take_used(&self, used: &mut Used, requests: u64, at: u64) {
        fitting!((self.kind), (&mut used.amount), (meter; inner) => meter.force(inner, requests, at));
        used.last = at;
    }

    /// Whether what follows at `at` is the same after both.
    fn is_same(&self, one: &Used, other: &Used, at: u64) -> bool {
        fitting!((self.kind), (&one.amount, &other.amount), (meter; one, other) => meter.is_same(one, other, at))
    }

    /// Counts so many that were made at `at` all the same: refused ones, or others' calls.
    pub(crate) fn force(&self, state: &mut KeyState, requests: u64, at: u64) {
        // More than ever goes at once makes a key wait no longer than that.
        let requests = requests.min(self.most);
        self.count_before(state, at, |used| {
            fitting!((self.kind), (&mut used.amount), (meter; inner) => meter.force(inner, requests, at));
        });
    }

    /// Counts so many that were made at `at`, as far as they have an effect: a bucket is empty at worst, a queue full.
    pub(crate) fn tell(&self, state: &mut KeyState, requests: u64, at: u64) {
        let queue = Some(self.timeout).filter(|it| *it < u64::MAX);
        let end = at.saturating_add(queue.unwrap_or(0));
        self.count_before(state, at, |used| {
            let latest = end.max(used.last);
            fitting!((self.kind), (&mut used.amount), (meter; inner) => meter.tell(inner, requests, at, latest));
        });
    }

    /// Forgets what is over at `now` and is of no use to anyone.
    #[inline]
    pub(crate) fn pass(&self, state: &mut KeyState, now: u64) {
        if state.booked.is_some() {
            self.pass_bookings(state, now);
        }
        let used = &mut state.used;
        if let (Kind::Gcra(meter), Amount::Gcra(pace)) = (&self.kind, &mut used.amount)
            && used.last <= now
        {
            meter.pass(pace, now);
        }
    }

    /// Whether the state is as one that was never used, from `now` on.
    pub(crate) fn is_idle(&self, state: &KeyState, now: u64) -> bool {
        let Used { amount, last } = &state.used;
        *last <= now && fitting!((self.kind), (amount), (meter; inner) => meter.is_idle(inner, now))
    }

    /// What is used of a key at `now`, before bookings to come.
    fn now_used<'a>(&self, state: &'a KeyState, now: u64) -> Cow<'a, Used> {
        match &state.booked {
            Some(booked) => Cow::Owned(self.used_at(booked, now)),
            None => Cow::Borrowed(&state.used),
        }
    }

    /// How many requests are used at `now`: those that a fresh state could take more.
    pub(crate) fn used(&self, state: &KeyState, now: u64) -> u64 {
        self.amount_used(&self.now_used(state, now).amount, now)
    }

    fn amount_used(&self, amount: &Amount, now: u64) -> u64 {
        fitting!((self.kind), (amount), (meter; inner) => meter.used(inner, now))
    }

    /// By how much the clocks of those who tell of calls may be ahead: a step, of a window or of what comes nearest to one.
    pub(crate) fn step(&self) -> u64 {
        match &self.kind {
            Kind::Steps(meter) => meter.step(),
            _ => {
                let step = default_step(Duration::from_nanos(self.reach()));
                u64::try_from(step.as_nanos()).expect("an hour at most")
            }
        }
    }

    /// How long a call matters at most, where nothing but calls that may go at once were made.
    fn reach(&self) -> u64 {
        match &self.kind {
            Kind::Gcra(meter) => meter.reach(),
            Kind::Stepped(meter) => meter.reach(),
            Kind::Fixed(meter) => meter.reach(),
            Kind::Counter(meter) => meter.reach(),
            Kind::Log(meter) => meter.reach(),
            Kind::Steps(meter) => meter.reach(),
            Kind::WarmUp(meter) => meter.reach(),
        }
    }

    /// Whether a call that was made at `at` has an effect at `now`.
    pub(crate) fn matters(&self, at: u64, now: u64) -> bool {
        at.saturating_add(self.reach()) > now
    }

    /// When a call that was made at `at` counts as made.
    pub(crate) fn at_or_now(&self, at: u64, now: u64) -> u64 {
        match &self.kind {
            Kind::Steps(_) => at,
            _ => now,
        }
    }
}
