//! The step window: a sliding window with a counter for each step.
//!
//! The calls of a step leave the window together, one window after the latest of them. Therefore no sliding window of this length ever
//! exceeds the limit, and a call is admitted at most one step later than by a sliding log. Under constant demand, calls are admitted in
//! groups of one step, and each group repeats after one window.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use super::MeterKind;
use crate::rate::Time;

#[derive(Debug, Clone)]
pub(crate) struct StepWindow {
    limit: u64,
    step: u64,
    window: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StepWindowState {
    /// Time of the latest call and number of requests, for each step with calls, oldest first.
    steps: VecDeque<(u64, u64)>,
    /// Number of requests in all steps.
    total: u64,
}

impl StepWindowState {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.steps.capacity() * size_of::<(u64, u64)>()
    }
}

impl StepWindow {
    pub(crate) fn new(limit: u64, window: Duration, step: Duration) -> Self {
        Self {
            limit,
            step: Time::from(step).0,
            window: Time::from(window).0,
        }
    }

    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    /// Start of the step after the one that contains `at`.
    pub(crate) fn next_step(&self, at: u64) -> u64 {
        (at - at % self.step).saturating_add(self.step)
    }

    /// Maximum number of stored steps.
    fn capacity(&self) -> usize {
        // A window of N steps can overlap N + 1 steps.
        let length = self.window.div_ceil(self.step) + 1;
        let capacity = usize::try_from(length.min(self.limit) + 1);
        capacity.expect("a checked number of steps")
    }

    /// The steps in the window that ends at `at`.
    fn within<'a>(
        &self,
        state: &'a StepWindowState,
        at: u64,
    ) -> impl Iterator<Item = &'a (u64, u64)> {
        let window = self.window;
        let steps = state.steps.iter();
        steps.skip_while(move |(latest, _)| latest.saturating_add(window) <= at)
    }
}

impl MeterKind for StepWindow {
    type State = StepWindowState;

    fn fresh(&self) -> Self::State {
        StepWindowState {
            steps: VecDeque::with_capacity(self.capacity()),
            total: 0,
        }
    }

    fn preallocate(&self, state: &mut Self::State) {
        let steps = &mut state.steps;
        steps.reserve_exact(self.capacity().saturating_sub(steps.len()));
    }

    fn adopts(&self, from: &Self, _counted: &mut Self::State) -> bool {
        (self.window, self.step) == (from.window, from.step)
    }

    /// Whether the total is the sum of the steps.
    fn is_valid(&self, state: &Self::State) -> bool {
        let mut counts = state.steps.iter().map(|(_, count)| *count);
        counts.try_fold(0, u64::checked_add) == Some(state.total)
    }

    fn lookback(&self) -> u64 {
        self.window
    }

    fn earliest(&self, state: &Self::State, requests: u64, from: u64) -> u64 {
        // Steps that had left the window at the latest call are no longer stored.
        let latest = state.steps.back().map_or(0, |(latest, _)| *latest);
        let from = from.max(latest);
        let (mut at, mut used) = (from, self.used(state, from));
        for (latest, count) in self.within(state, from) {
            if used.saturating_add(requests) <= self.limit {
                break;
            }
            used -= count;
            at = latest.saturating_add(self.window);
        }
        at
    }

    /// Counts requests at `at`, which may be before earlier calls.
    fn charge(&self, state: &mut Self::State, requests: u64, at: u64) {
        // Requests above the limit have no further effect. Clamp them so that the total does not overflow.
        let requests = requests.min(self.limit).min(u64::MAX - state.total);
        let steps = &mut state.steps;
        let index = steps.partition_point(|(latest, _)| latest / self.step < at / self.step);
        match steps.get_mut(index) {
            Some((latest, count)) if *latest / self.step == at / self.step => {
                *latest = at.max(*latest);
                *count += requests;
            }
            _ => steps.insert(index, (at, requests)),
        }
        state.total += requests;
        let newest = steps.back().map_or(0, |(latest, _)| *latest);
        while let Some((latest, count)) = steps.front().copied() {
            // The later steps alone reach the limit.
            let is_redundant = steps.len() as u64 > self.limit && state.total - count >= self.limit;
            if latest.saturating_add(self.window) > newest && !is_redundant {
                break;
            }
            state.total -= count;
            steps.pop_front();
        }
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        self.within(one, at).eq(self.within(other, at))
    }

    fn refund(&self, state: &mut Self::State, requests: u64, at: u64) {
        let of_step = |(latest, _): &&mut (u64, u64)| *latest / self.step == at / self.step;
        if let Some((_, count)) = state.steps.iter_mut().find(of_step) {
            let refunded = requests.min(*count);
            *count -= refunded;
            state.total -= refunded;
        }
    }

    fn is_idle(&self, state: &Self::State, now: u64) -> bool {
        self.used(state, now) == 0
    }

    fn used(&self, state: &Self::State, now: u64) -> u64 {
        let is_over = |latest: u64| latest.saturating_add(self.window) <= now;
        let over = state.steps.iter().take_while(|it| is_over(it.0));
        state.total - over.map(|(_, count)| count).sum::<u64>()
    }
}
