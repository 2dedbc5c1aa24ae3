//! Algorithms with a counter per window: fixed window and sliding counter.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MeterKind;
use crate::{algorithm::Alignment, rate::Time};

/// A counter per window.
#[derive(Debug, Clone)]
pub(crate) struct FixedWindow {
    limit: u64,
    window: u64,
    aligned: Alignment,
}

/// The latest window with calls.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct FixedWindowState {
    start: u64,
    count: u64,
}

impl FixedWindow {
    pub(crate) fn new(limit: u64, window: Duration, aligned: Alignment) -> Self {
        Self {
            limit,
            window: Time::from(window).0,
            aligned,
        }
    }

    fn end(&self, window: &FixedWindowState) -> u64 {
        window.start.saturating_add(self.window)
    }
}

impl MeterKind for FixedWindow {
    type State = FixedWindowState;

    fn fresh(&self) -> Self::State {
        Self::State::default()
    }

    fn adopts(&self, from: &Self, _window: &mut Self::State) -> bool {
        (self.window, self.aligned) == (from.window, from.aligned)
    }

    fn lookback(&self) -> u64 {
        self.window
    }

    fn earliest(&self, window: &Self::State, requests: u64, from: u64) -> u64 {
        let from = from.max(window.start);
        let end = self.end(window);
        let fits = window.count.saturating_add(requests) <= self.limit;
        let is_open = window.count == 0 || fits || from >= end;
        if is_open { from } else { end }
    }

    fn charge(&self, window: &mut Self::State, requests: u64, at: u64) {
        if window.count == 0 || at >= self.end(window) {
            window.start = match self.aligned {
                Alignment::Clock => at - at % self.window,
                Alignment::FirstCall => at,
            };
            window.count = 0;
        }
        window.count = window.count.saturating_add(requests);
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        let as_at = |it: &Self::State| (self.used(it, at) > 0).then_some((it.start, it.count));
        as_at(one) == as_at(other)
    }

    fn refund(&self, window: &mut Self::State, requests: u64, at: u64) {
        if at < window.start {
            // If windows start with calls, the start of the previous one is unknown by now.
            if window.count > 0 || self.aligned == Alignment::FirstCall {
                return;
            }
            // The latest window is empty now. The previous one must have been full, because this call had to wait.
            let windows = (window.start - at).div_ceil(self.window);
            let nanos = windows.saturating_mul(self.window);
            window.start = window.start.saturating_sub(nanos);
            window.count = self.limit;
        }
        window.count = window.count.saturating_sub(requests);
    }

    fn is_idle(&self, window: &Self::State, now: u64) -> bool {
        window.count == 0 || self.end(window) <= now
    }

    fn used(&self, window: &Self::State, now: u64) -> u64 {
        let is_over = self.end(window) <= now;
        if is_over { 0 } else { window.count }
    }
}

/// Counters of the current and the previous window. The previous one is weighted by its overlap with the sliding window.
#[derive(Debug, Clone)]
pub(crate) struct SlidingCounter {
    limit: u64,
    window: u64,
}

/// The latest window with calls, and the one before it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SlidingCounterState {
    start: u64,
    previous: u64,
    count: u64,
}

impl SlidingCounter {
    pub(crate) fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            window: Time::from(window).0,
        }
    }

    /// The counters as of `at`.
    fn at(&self, state: &SlidingCounterState, at: u64) -> SlidingCounterState {
        let start = at - at % self.window;
        let (previous, count) = match start.saturating_sub(state.start) / self.window {
            0 => return state.clone(),
            1 => (state.count, 0),
            _ => (0, 0),
        };
        SlidingCounterState {
            start,
            previous,
            count,
        }
    }
}

impl MeterKind for SlidingCounter {
    type State = SlidingCounterState;

    fn fresh(&self) -> Self::State {
        Self::State::default()
    }

    fn adopts(&self, from: &Self, _state: &mut Self::State) -> bool {
        self.window == from.window
    }

    fn lookback(&self) -> u64 {
        self.window.saturating_mul(2)
    }

    fn earliest(&self, state: &Self::State, requests: u64, from: u64) -> u64 {
        let mut from = from.max(state.start);
        // The slot is in this window, the next one, or the one after that, which is empty.
        for _ in 0..2 {
            let state = self.at(state, from);
            let end = state.start.saturating_add(self.window);
            let free = self.limit.checked_sub(state.count.saturating_add(requests));
            if let Some(free) = free {
                // previous · (window - elapsed) <= free · window
                let covered = match state.previous {
                    0 => self.window,
                    previous => {
                        let covered = u128::from(free) * u128::from(self.window);
                        let covered = covered / u128::from(previous);
                        u64::try_from(covered).unwrap_or(u64::MAX).min(self.window)
                    }
                };
                let at = from.max(end - covered);
                if at < end {
                    return at;
                }
            }
            from = end;
        }
        from
    }

    fn charge(&self, state: &mut Self::State, requests: u64, at: u64) {
        *state = self.at(state, at);
        state.count = state.count.saturating_add(requests);
    }

    fn charge_reported(&self, state: &mut Self::State, requests: u64, at: u64, _latest: u64) {
        // Requests above the limit have no further effect.
        self.charge(state, requests.min(self.limit), at);
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        self.at(one, at) == self.at(other, at)
    }

    fn refund(&self, state: &mut Self::State, requests: u64, at: u64) {
        let known = if state.count == 0 { 2 } else { 1 };
        if at < state.start.saturating_sub(known * self.window) {
            return;
        }
        // If the latest window is empty, the previous one becomes the latest. The one before that is assumed to have been full.
        while at < state.start && state.count == 0 && state.start >= self.window {
            state.start -= self.window;
            state.count = std::mem::replace(&mut state.previous, self.limit);
        }
        if at >= state.start {
            state.count = state.count.saturating_sub(requests);
        } else {
            state.previous = state.previous.saturating_sub(requests);
        }
    }

    fn is_idle(&self, state: &Self::State, now: u64) -> bool {
        let at = self.at(state, now);
        at.previous == 0 && at.count == 0
    }

    /// Rounds up.
    fn used(&self, state: &Self::State, now: u64) -> u64 {
        let at = self.at(state, now);
        let covered = at.start.saturating_add(self.window).saturating_sub(now);
        let previous = u128::from(at.previous) * u128::from(covered);
        let previous = previous.div_ceil(u128::from(self.window));
        at.count
            .saturating_add(u64::try_from(previous).unwrap_or(u64::MAX))
    }
}
