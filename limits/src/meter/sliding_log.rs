//! The sliding log: the time of each request in the window.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use super::MeterKind;

#[derive(Debug, Clone)]
pub(crate) struct SlidingLog {
    limit: usize,
    window: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SlidingLogState {
    /// Oldest first; up to `limit` entries. The capacity is allocated at creation.
    times: VecDeque<u64>,
    /// The latest dropped entry.
    dropped: u64,
}

impl Clone for SlidingLogState {
    /// Keeps the capacity, so that the copy never grows.
    fn clone(&self) -> Self {
        let mut times = VecDeque::with_capacity(self.times.capacity());
        times.extend(&self.times);
        Self { times, ..*self }
    }
}

impl SlidingLogState {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.times.capacity() * size_of::<u64>()
    }

    /// Index of the first entry after `at`.
    fn later_than(&self, at: u64) -> usize {
        self.times.partition_point(|it| *it <= at)
    }

    fn last(&self) -> u64 {
        self.times.back().copied().unwrap_or(0)
    }
}

impl SlidingLog {
    pub(crate) fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit: usize::try_from(limit).expect("a checked limit"),
            window: u64::try_from(window.as_nanos()).expect("a checked time"),
        }
    }

    /// Appends an entry. If the log is full, drops the oldest.
    fn push(&self, state: &mut SlidingLogState, at: u64) {
        let times = &mut state.times;
        if times.len() >= self.limit {
            state.dropped = times.pop_front().unwrap_or(0);
        }
        times.push_back(at);
    }

    /// Index of the first entry in the window that ends at `at`, or after it.
    fn first_within(&self, state: &SlidingLogState, at: u64) -> usize {
        match at.checked_sub(self.window) {
            Some(start) => state.later_than(start),
            None => 0,
        }
    }
}

impl MeterKind for SlidingLog {
    type State = SlidingLogState;

    fn fresh(&self) -> Self::State {
        SlidingLogState {
            times: VecDeque::with_capacity(self.limit),
            dropped: 0,
        }
    }

    fn preallocate(&self, state: &mut Self::State) {
        let times = &mut state.times;
        times.reserve_exact(self.limit.saturating_sub(times.len()));
    }

    /// Keeps the latest entries up to the new limit.
    fn adopts(&self, from: &Self, state: &mut Self::State) -> bool {
        let old = std::mem::replace(state, self.fresh());
        old.times.iter().for_each(|at| self.push(state, *at));
        self.window == from.window
    }

    fn lookback(&self) -> u64 {
        self.window
    }

    fn earliest(&self, state: &Self::State, requests: u64, from: u64) -> u64 {
        let from = from.max(state.last());
        let within = self.first_within(state, from);
        let used = state.times.len() - within;
        let requests = usize::try_from(requests).unwrap_or(usize::MAX);
        match (used.saturating_add(requests)).checked_sub(self.limit) {
            None | Some(0) => from,
            // The number of entries that must leave the window. A call booked under a higher limit needs all of them to leave.
            Some(over) => {
                let last = state.times.get(within + over - 1);
                let last = last.or(state.times.back());
                last.map_or(from, |last| last.saturating_add(self.window))
            }
        }
    }

    fn charge(&self, state: &mut Self::State, requests: u64, at: u64) {
        let kept = requests.min(u64::try_from(self.limit).unwrap_or(u64::MAX));
        let at = at.max(state.last());
        (0..kept).for_each(|_| self.push(state, at));
    }

    fn is_equivalent(&self, one: &Self::State, other: &Self::State, at: u64) -> bool {
        let [one, other] = [one, other].map(|it| it.times.range(self.first_within(it, at)..));
        one.eq(other)
    }

    fn refund(&self, state: &mut Self::State, requests: u64, at: u64) {
        let end = state.later_than(at);
        let was_latest = end == state.times.len();
        let same = state.times.range(..end).rev();
        let same = same.take_while(|it| **it == at);
        let found = same
            .take(usize::try_from(requests).unwrap_or(usize::MAX))
            .count();
        state.times.drain(end - found..end);
        // Restore the same number of dropped entries. Their exact times are unknown: none is later than the latest dropped entry,
        // and those dropped by the latest call had left the window by then.
        if state.dropped > 0 {
            let restored = if was_latest {
                at.saturating_sub(self.window).min(state.dropped)
            } else {
                state.dropped
            };
            (0..found).for_each(|_| state.times.push_front(restored));
        }
    }

    fn is_idle(&self, state: &Self::State, now: u64) -> bool {
        self.used(state, now) == 0
    }

    fn used(&self, state: &Self::State, now: u64) -> u64 {
        let used = state.times.len() - self.first_within(state, now);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}
