//! The state that one limit keeps for one key, whatever its algorithm: when may the next go, and take it.
//!
//! All times are nanoseconds on one clock that does not go back. A state that was never used is the same as one that has
//! been idle for long enough, so idle states can be forgotten.

mod gcra;
mod log;
mod stepped;
mod steps;
mod warm_up;
mod windows;

use std::time::Duration;

use crate::{
    algorithm::{Algorithm, WhenFull, step_of},
    decision::TooEarly,
    saved::{Damaged, Reader, Writer},
};

use gcra::{Gcra, Pace};
use log::{Log, Logged};
use stepped::{Stepped, Tokens};
use steps::{Ring, Steps};
use warm_up::{Heat, WarmUp};
use windows::{Counter, Counts, Fixed, Window};

/// An algorithm with its numbers in the form that a decision needs.
#[derive(Debug, Clone)]
pub(crate) struct Meter {
    kind: Kind,
    /// Most requests of one call.
    most: u64,
    /// The longest that a call may wait for this limit, in nanoseconds.
    pub(crate) patience: u64,
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

/// What is kept for one key.
#[derive(Debug, Clone)]
pub(crate) enum State {
    Gcra(Pace),
    Stepped(Tokens),
    Fixed(Window),
    Counter(Counts),
    Log(Logged),
    Steps(Ring),
    WarmUp(Heat),
}

/// How a state follows its limit when that gets other numbers.
///
/// Of token buckets, spacing and leaky buckets each does as it says. Windows of the same length keep what they counted, and whatever
/// changes its kind or its window takes over how many requests are used at that moment; these only tell
/// [`Reset`](Self::Reset) from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carry {
    /// What was used stays used, counted in requests: who is ten requests ahead of the old rate is ten ahead of the new.
    #[default]
    Requests,
    /// What was used stays used, counted in time: who has to wait for a second still has to.
    Time,
    /// All begin anew.
    Reset,
    /// What is left stays left, up to the new burst: who may send three at once still may.
    AsIs,
}

/// `$body` for the state that fits its meter.
macro_rules! fitting {
    ($self:expr, $state:expr, ($meter:ident, $inner:ident) => $body:expr) => {
        match (&$self.kind, $state) {
            (Kind::Gcra($meter), State::Gcra($inner)) => $body,
            (Kind::Stepped($meter), State::Stepped($inner)) => $body,
            (Kind::Fixed($meter), State::Fixed($inner)) => $body,
            (Kind::Counter($meter), State::Counter($inner)) => $body,
            (Kind::Log($meter), State::Log($inner)) => $body,
            (Kind::Steps($meter), State::Steps($inner)) => $body,
            (Kind::WarmUp($meter), State::WarmUp($inner)) => $body,
            _ => unreachable!("a state is made by its meter, and changed with it"),
        }
    };
}

impl State {
    /// Of an entry that is free.
    pub(crate) fn none() -> Self {
        Self::Fixed(Window::default())
    }

    pub(crate) fn save(&self, out: &mut Writer<'_>) {
        match self {
            Self::Gcra(pace) => pace.save(out),
            Self::Stepped(tokens) => tokens.save(out),
            Self::Fixed(window) => window.save(out),
            Self::Counter(counts) => counts.save(out),
            Self::Log(logged) => logged.save(out),
            Self::Steps(ring) => ring.save(out),
            Self::WarmUp(heat) => heat.save(out),
        }
    }

    /// What it has beside itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Gcra(pace) => pace.heap_bytes(),
            Self::Log(logged) => logged.heap_bytes(),
            Self::Steps(ring) => ring.heap_bytes(),
            Self::Stepped(_) | Self::Fixed(_) | Self::Counter(_) | Self::WarmUp(_) => 0,
        }
    }
}

impl Meter {
    /// Of a checked algorithm. What is `shared` by many keys may be taken out of order; see [`Gcra`].
    pub(crate) fn new(algorithm: &Algorithm, shared: bool) -> Self {
        let mut patience = u64::MAX;
        let kind = match *algorithm {
            Algorithm::TokenBucket { rate, burst } => Kind::Gcra(Gcra::new(rate, burst, shared)),
            Algorithm::Spacing { rate } => Kind::Gcra(Gcra::new(rate, 1, shared)),
            Algorithm::LeakyBucket {
                rate,
                capacity,
                when_full,
            } => match when_full {
                WhenFull::Drop => Kind::Gcra(Gcra::new(rate, capacity, shared)),
                WhenFull::Queue => {
                    let gcra = Gcra::new(rate, 1, shared);
                    patience = gcra.time_of(capacity);
                    Kind::Gcra(gcra)
                }
            },
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
            most: algorithm.most_at_once(),
            patience,
        }
    }

    /// A state that was never used.
    pub(crate) fn fresh(&self) -> State {
        match &self.kind {
            Kind::Gcra(meter) => State::Gcra(meter.fresh()),
            Kind::Stepped(meter) => State::Stepped(meter.fresh()),
            Kind::Fixed(_) => State::Fixed(Window::default()),
            Kind::Counter(_) => State::Counter(Counts::default()),
            Kind::Log(meter) => State::Log(meter.fresh()),
            Kind::Steps(meter) => State::Steps(meter.fresh()),
            Kind::WarmUp(meter) => State::WarmUp(meter.fresh()),
        }
    }

    /// A state that [`State::save`] wrote, of a meter with the same numbers.
    pub(crate) fn load(&self, bytes: &[u8]) -> Result<State, Damaged> {
        let mut reader = Reader(bytes);
        let state = match &self.kind {
            Kind::Gcra(meter) => State::Gcra(meter.load(&mut reader)?),
            Kind::Stepped(meter) => State::Stepped(meter.load(&mut reader)?),
            Kind::Fixed(_) => State::Fixed(Window::load(&mut reader)?),
            Kind::Counter(meter) => State::Counter(meter.load(&mut reader)?),
            Kind::Log(meter) => State::Log(meter.load(&mut reader)?),
            Kind::Steps(meter) => State::Steps(meter.load(&mut reader)?),
            Kind::WarmUp(meter) => State::WarmUp(meter.load(&mut reader)?),
        };
        reader.end()?;
        Ok(state)
    }

    /// Counts so many as made at `at` that nobody knows more of, but that none of them [began](Self::is_counted_from_calls) a window.
    pub(crate) fn charge(&self, state: &mut State, requests: u64, at: u64) {
        let is_unbegun = match (&self.kind, &*state) {
            (Kind::Fixed(meter), State::Fixed(window)) => meter.is_unbegun(window, at),
            (Kind::Stepped(_), State::Stepped(tokens)) => tokens.is_unbegun(),
            _ => false,
        };
        if !is_unbegun {
            self.pass(state, at);
            self.force(state, requests, at);
        }
    }

    /// Whether its windows, or the steps in which its tokens come, are counted from calls.
    pub(crate) fn is_counted_from_calls(&self) -> bool {
        match &self.kind {
            Kind::Fixed(meter) => meter.is_counted_from_calls(),
            Kind::Stepped(_) => true,
            _ => false,
        }
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
    pub(crate) fn earliest(&self, state: &State, requests: u64, from: u64) -> u64 {
        fitting!(self, state, (meter, inner) => meter.earliest(inner, requests, from))
    }

    /// Takes so many at a moment that [`earliest`](Self::earliest) gave for itself.
    #[inline]
    pub(crate) fn take(&self, state: &mut State, requests: u64, at: u64) {
        fitting!(self, state, (meter, inner) => meter.take(inner, requests, at));
    }

    /// The latest moment that was given out, where one before it may still be.
    pub(crate) fn latest(state: &State) -> u64 {
        match state {
            State::Gcra(pace) => Gcra::latest(pace),
            _ => 0,
        }
    }

    /// Counts so many that were made at `at` all the same: refused ones, or others' calls.
    pub(crate) fn force(&self, state: &mut State, requests: u64, at: u64) {
        // More than ever goes at once makes a key wait no longer than that.
        let requests = requests.min(self.most);
        fitting!(self, state, (meter, inner) => meter.force(inner, requests, at));
    }

    /// Counts so many that were made at `at`, as far as they have an effect: a bucket is empty at worst, a queue full. Windows end by
    /// themselves.
    pub(crate) fn tell(&self, state: &mut State, requests: u64, at: u64) {
        let room = match (&self.kind, &*state) {
            (Kind::Gcra(meter), State::Gcra(pace)) => {
                let queue = if self.patience == u64::MAX {
                    0
                } else {
                    self.patience
                };
                meter.room_for_told(pace, at, queue)
            }
            (Kind::WarmUp(meter), State::WarmUp(heat)) => meter.room_for_told(heat, at),
            _ => u64::MAX,
        };
        if room > 0 {
            self.force(state, requests.min(room), at);
        }
    }

    /// Whether what was taken at `at` can be given back, without those who wait behind it.
    pub(crate) fn can_give_back(&self, state: &State, at: u64) -> bool {
        match (&self.kind, state) {
            (_, State::Gcra(pace)) => Gcra::can_give_back(pace, at),
            (_, State::Stepped(tokens)) => Stepped::can_give_back(tokens, at),
            (Kind::Fixed(meter), State::Fixed(window)) => meter.can_give_back(window, at),
            (Kind::Counter(meter), State::Counter(counts)) => meter.can_give_back(counts, at),
            (_, State::WarmUp(heat)) => WarmUp::can_give_back(heat, at),
            (_, State::Log(_) | State::Steps(_) | State::Fixed(_) | State::Counter(_)) => true,
        }
    }

    /// Gives back what [can be](Self::can_give_back).
    pub(crate) fn give_back(&self, state: &mut State, requests: u64, at: u64) {
        fitting!(self, state, (meter, inner) => meter.give_back(inner, requests, at));
    }

    /// Forgets what is to go after `now`: these calls, from the last to the first. What is not known any more counts as used.
    pub(crate) fn reopen(
        &self,
        state: &mut State,
        calls: impl Iterator<Item = (u64, u64)>,
        now: u64,
    ) {
        match (&self.kind, state) {
            (Kind::Gcra(meter), State::Gcra(pace)) => {
                let all = calls.map(|(_, requests)| requests);
                meter.reopen(pace, all.fold(0, u64::saturating_add), now);
            }
            (_, state) => {
                match state {
                    State::Fixed(window) => Fixed::reopen(window, now),
                    State::Counter(counts) => Counter::reopen(counts, now),
                    State::WarmUp(heat) => WarmUp::reopen(heat, now),
                    State::Stepped(tokens) => Stepped::reopen(tokens, now),
                    State::Gcra(_) | State::Log(_) | State::Steps(_) => {}
                }
                for (at, requests) in calls {
                    if self.can_give_back(state, at) {
                        self.give_back(state, requests, at);
                    }
                }
            }
        }
    }

    /// Forgets what is over at `now` and is of no use to anyone.
    #[inline]
    pub(crate) fn pass(&self, state: &mut State, now: u64) {
        if let (Kind::Gcra(meter), State::Gcra(pace)) = (&self.kind, state) {
            meter.pass(pace, now);
        }
    }

    /// Whether the state is as one that was never used, from `now` on.
    pub(crate) fn is_idle(&self, state: &State, now: u64) -> bool {
        fitting!(self, state, (meter, inner) => meter.is_idle(inner, now))
    }

    /// How many requests are used at `now`: those that a fresh state could take more.
    pub(crate) fn used(&self, state: &State, now: u64) -> u64 {
        fitting!(self, state, (meter, inner) => meter.used(inner, now))
    }

    /// Counts calls that were made at `at`, which may be earlier than what is known.
    ///
    /// # Errors
    /// When `at` is more than a step after `now`.
    pub(crate) fn record(
        &self,
        state: &mut State,
        requests: u64,
        at: u64,
        now: u64,
    ) -> Result<(), TooEarly> {
        match (&self.kind, state) {
            (Kind::Steps(meter), State::Steps(ring)) => meter.record(ring, requests, at, now),
            _ if at > now => Err(TooEarly),
            (_, state) => {
                self.force(state, requests, now);
                Ok(())
            }
        }
    }

    /// By how much the clocks of those who tell of calls may be ahead: a step, of a window or of what comes nearest to one.
    pub(crate) fn step(&self) -> u64 {
        match &self.kind {
            Kind::Steps(meter) => meter.step(),
            _ => {
                let step = step_of(Duration::from_nanos(self.reach()));
                u64::try_from(step.as_nanos()).expect("an hour at most")
            }
        }
    }

    /// How long a call matters at most, where nothing but calls that may go at once were made.
    fn reach(&self) -> u64 {
        match &self.kind {
            Kind::Gcra(meter) => meter.reach(),
            Kind::Stepped(meter) => meter.reach(),
            Kind::Fixed(meter) => meter.window(),
            Kind::Counter(meter) => meter.window().saturating_mul(2),
            Kind::Log(meter) => meter.window(),
            Kind::Steps(meter) => meter.reach(),
            Kind::WarmUp(meter) => meter.reach(),
        }
    }

    /// Whether a call that was made at `at` has an effect at `now`.
    pub(crate) fn matters(&self, at: u64, now: u64) -> bool {
        match &self.kind {
            Kind::Steps(meter) => meter.is_within(at, now),
            _ => at.saturating_add(self.reach()) > now,
        }
    }

    /// When a call that was made at `at` counts as made.
    pub(crate) fn at_or_now(&self, at: u64, now: u64) -> u64 {
        match &self.kind {
            Kind::Steps(_) => at,
            _ => now,
        }
    }

    /// The state that `old` becomes when its limit changes from `from` to this at `now`.
    pub(crate) fn carried(&self, from: &Self, old: &State, carry: Carry, now: u64) -> State {
        if carry == Carry::Reset {
            return self.fresh();
        }
        match (&from.kind, &self.kind, old) {
            (Kind::Gcra(from), Kind::Gcra(to), State::Gcra(pace)) => {
                State::Gcra(to.carried(from, pace, carry, now))
            }
            (Kind::Fixed(from), Kind::Fixed(to), State::Fixed(_)) if from.has_windows_of(to) => {
                old.clone()
            }
            (Kind::Counter(from), Kind::Counter(to), State::Counter(_))
                if from.has_windows_of(to) =>
            {
                old.clone()
            }
            (Kind::Log(from), Kind::Log(to), State::Log(logged)) if from.has_windows_of(to) => {
                State::Log(to.resized(logged))
            }
            (Kind::Steps(from), Kind::Steps(to), State::Steps(_)) if from.has_windows_of(to) => {
                old.clone()
            }
            _ => {
                let mut state = self.fresh();
                self.force(&mut state, from.used(old, now), now);
                state
            }
        }
    }
}
