//! The step window: a sliding window that moves in steps, with a counter for each step.
//!
//! The calls of a step count together, and leave the window together: a window after the latest of them. So no sliding window of
//! this length has ever more than the limit, a call is let go at most one step later than a sliding log would, and where somebody always
//! waits, calls go in groups of a step, each a window after the same group before.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use super::Method;
use crate::rate::Time;

#[derive(Debug, Clone)]
pub(crate) struct Steps {
    limit: u64,
    step: u64,
    window: u64,
}

/// The steps in which calls were made: the latest moment of each, and how many.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Each of another step, the oldest first.
    steps: VecDeque<(u64, u64)>,
    /// Of all of them.
    total: u64,
}

impl Counted {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.steps.capacity() * size_of::<(u64, u64)>()
    }
}

impl Steps {
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

    /// When the step after the one of `at` begins.
    pub(crate) fn next_step(&self, at: u64) -> u64 {
        (at - at % self.step).saturating_add(self.step)
    }

    /// Most steps that are kept.
    fn room(&self) -> usize {
        // A window reaches into one step more than it is long.
        let length = self.window.div_ceil(self.step) + 1;
        let room = usize::try_from(length.min(self.limit) + 1);
        room.expect("a checked number of steps")
    }

    /// The steps that are in the window which ends at `at`.
    fn within<'a>(&self, counted: &'a Counted, at: u64) -> impl Iterator<Item = &'a (u64, u64)> {
        let window = self.window;
        let steps = counted.steps.iter();
        steps.skip_while(move |(latest, _)| latest.saturating_add(window) <= at)
    }
}

impl Method for Steps {
    type Amount = Counted;

    fn fresh(&self) -> Counted {
        Counted {
            steps: VecDeque::with_capacity(self.room()),
            total: 0,
        }
    }

    fn reserve(&self, counted: &mut Counted) {
        let steps = &mut counted.steps;
        steps.reserve_exact(self.room().saturating_sub(steps.len()));
    }

    fn takes_over(&self, from: &Self, _counted: &mut Counted) -> bool {
        (self.window, self.step) == (from.window, from.step)
    }

    /// Whether the total is that of the steps.
    fn fits(&self, counted: &Counted) -> bool {
        let mut counts = counted.steps.iter().map(|(_, count)| *count);
        counts.try_fold(0, u64::checked_add) == Some(counted.total)
    }

    fn reach(&self) -> u64 {
        self.window
    }

    fn earliest(&self, counted: &Counted, requests: u64, from: u64) -> u64 {
        // What left the window of the latest is not known any more.
        let latest = counted.steps.back().map_or(0, |(latest, _)| *latest);
        let from = from.max(latest);
        let (mut at, mut used) = (from, self.used(counted, from));
        for (latest, count) in self.within(counted, from) {
            if used.saturating_add(requests) <= self.limit {
                break;
            }
            used -= count;
            at = latest.saturating_add(self.window);
        }
        at
    }

    /// Counts calls made at `at`, also those that were made before others.
    fn force(&self, counted: &mut Counted, requests: u64, at: u64) {
        // More than the limit makes a key wait no longer, and the total stays the sum of the steps.
        let requests = requests.min(self.limit).min(u64::MAX - counted.total);
        let steps = &mut counted.steps;
        let index = steps.partition_point(|(latest, _)| latest / self.step < at / self.step);
        match steps.get_mut(index) {
            Some((latest, count)) if *latest / self.step == at / self.step => {
                *latest = at.max(*latest);
                *count += requests;
            }
            _ => steps.insert(index, (at, requests)),
        }
        counted.total += requests;
        let newest = steps.back().map_or(0, |(latest, _)| *latest);
        while let Some((latest, count)) = steps.front().copied() {
            // With those behind it the window is full without it.
            let is_needless =
                steps.len() as u64 > self.limit && counted.total - count >= self.limit;
            if latest.saturating_add(self.window) > newest && !is_needless {
                break;
            }
            counted.total -= count;
            steps.pop_front();
        }
    }

    fn is_same(&self, one: &Counted, other: &Counted, at: u64) -> bool {
        self.within(one, at).eq(self.within(other, at))
    }

    fn give_back(&self, counted: &mut Counted, requests: u64, at: u64) {
        let of_step = |(latest, _): &&mut (u64, u64)| *latest / self.step == at / self.step;
        if let Some((_, count)) = counted.steps.iter_mut().find(of_step) {
            let given = requests.min(*count);
            *count -= given;
            counted.total -= given;
        }
    }

    fn is_idle(&self, counted: &Counted, now: u64) -> bool {
        self.used(counted, now) == 0
    }

    fn used(&self, counted: &Counted, now: u64) -> u64 {
        let is_over = |latest: u64| latest.saturating_add(self.window) <= now;
        let over = counted.steps.iter().take_while(|it| is_over(it.0));
        counted.total - over.map(|(_, count)| count).sum::<u64>()
    }
}
