//! The sliding log: the moment of each call, until it has left the window.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use super::Method;

#[derive(Debug, Clone)]
pub(crate) struct Log {
    limit: usize,
    window: u64,
}

/// The latest moments.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Logged {
    /// The oldest first; as many as the limit, with room for all of them from the start.
    moments: VecDeque<u64>,
    /// The latest that is not kept any more.
    gone: u64,
}

impl Clone for Logged {
    /// A copy has as much room, so that it never takes more memory later.
    fn clone(&self) -> Self {
        let mut moments = VecDeque::with_capacity(self.moments.capacity());
        moments.extend(&self.moments);
        Self { moments, ..*self }
    }
}

impl Logged {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.moments.capacity() * size_of::<u64>()
    }

    /// The first entry that is later than `at`.
    fn later_than(&self, at: u64) -> usize {
        self.moments.partition_point(|it| *it <= at)
    }

    fn last(&self) -> u64 {
        self.moments.back().copied().unwrap_or(0)
    }
}

impl Log {
    pub(crate) fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit: usize::try_from(limit).expect("a checked limit"),
            window: u64::try_from(window.as_nanos()).expect("a checked time"),
        }
    }

    /// Appends one; the oldest goes when there is no room.
    fn push(&self, logged: &mut Logged, at: u64) {
        let moments = &mut logged.moments;
        if moments.len() >= self.limit {
            logged.gone = moments.pop_front().unwrap_or(0);
        }
        moments.push_back(at);
    }

    /// The first entry that is in the window which ends at `at`, or after it.
    fn first_within(&self, logged: &Logged, at: u64) -> usize {
        match at.checked_sub(self.window) {
            Some(left) => logged.later_than(left),
            None => 0,
        }
    }
}

impl Method for Log {
    type Amount = Logged;

    fn fresh(&self) -> Logged {
        Logged {
            moments: VecDeque::with_capacity(self.limit),
            gone: 0,
        }
    }

    fn reserve(&self, logged: &mut Logged) {
        let moments = &mut logged.moments;
        moments.reserve_exact(self.limit.saturating_sub(moments.len()));
    }

    /// The latest moments stay, as many as this keeps.
    fn takes_over(&self, from: &Self, logged: &mut Logged) -> bool {
        let old = std::mem::replace(logged, self.fresh());
        old.moments.iter().for_each(|at| self.push(logged, *at));
        self.window == from.window
    }

    fn reach(&self) -> u64 {
        self.window
    }

    fn earliest(&self, logged: &Logged, requests: u64, from: u64) -> u64 {
        let from = from.max(logged.last());
        let within = self.first_within(logged, from);
        let used = logged.moments.len() - within;
        let requests = usize::try_from(requests).unwrap_or(usize::MAX);
        match (used.saturating_add(requests)).checked_sub(self.limit) {
            None | Some(0) => from,
            // So many have to leave it: all, for a call that was booked under a higher limit.
            Some(over) => {
                let last = logged.moments.get(within + over - 1);
                let last = last.or(logged.moments.back());
                last.map_or(from, |last| last.saturating_add(self.window))
            }
        }
    }

    fn force(&self, logged: &mut Logged, requests: u64, at: u64) {
        let kept = requests.min(u64::try_from(self.limit).unwrap_or(u64::MAX));
        let at = at.max(logged.last());
        (0..kept).for_each(|_| self.push(logged, at));
    }

    fn is_same(&self, one: &Logged, other: &Logged, at: u64) -> bool {
        let [one, other] = [one, other].map(|it| it.moments.range(self.first_within(it, at)..));
        one.eq(other)
    }

    fn give_back(&self, logged: &mut Logged, requests: u64, at: u64) {
        let end = logged.later_than(at);
        let was_latest = end == logged.moments.len();
        let same = logged.moments.range(..end).rev();
        let same = same.take_while(|it| **it == at);
        let found = same
            .take(usize::try_from(requests).unwrap_or(usize::MAX))
            .count();
        logged.moments.drain(end - found..end);
        // What was pushed out counts again: not later than the latest of that, and what the latest call pushed out had left
        // the window when it went; more is not known.
        if logged.gone > 0 {
            let stand_in = if was_latest {
                at.saturating_sub(self.window).min(logged.gone)
            } else {
                logged.gone
            };
            (0..found).for_each(|_| logged.moments.push_front(stand_in));
        }
    }

    fn is_idle(&self, logged: &Logged, now: u64) -> bool {
        self.used(logged, now) == 0
    }

    fn used(&self, logged: &Logged, now: u64) -> u64 {
        let used = logged.moments.len() - self.first_within(logged, now);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}
