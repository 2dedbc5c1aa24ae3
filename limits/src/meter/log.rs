//! The sliding log: the moment of each call, until it has left the window.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

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

    pub(crate) fn has_windows_of(&self, other: &Self) -> bool {
        self.window == other.window
    }

    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    pub(crate) fn fresh(&self) -> Logged {
        Logged {
            moments: VecDeque::with_capacity(self.limit),
            gone: 0,
        }
    }

    /// Gives one that was restored the room of a fresh one.
    pub(crate) fn reserve(&self, logged: &mut Logged) {
        let moments = &mut logged.moments;
        moments.reserve_exact(self.limit.saturating_sub(moments.len()));
    }

    /// Appends one; the oldest goes when there is no room.
    fn push(&self, logged: &mut Logged, at: u64) {
        let moments = &mut logged.moments;
        if moments.len() >= self.limit {
            logged.gone = moments.pop_front().unwrap_or(0);
        }
        moments.push_back(at);
    }

    /// The latest of `old`, as many as this keeps.
    pub(crate) fn resized(&self, old: &Logged) -> Logged {
        let mut logged = self.fresh();
        for at in &old.moments {
            self.push(&mut logged, *at);
        }
        logged
    }

    /// The first entry that is in the window which ends at `at`, or after it.
    fn first_within(&self, logged: &Logged, at: u64) -> usize {
        match at.checked_sub(self.window) {
            Some(left) => logged.later_than(left),
            None => 0,
        }
    }

    pub(crate) fn earliest(&self, logged: &Logged, requests: u64, from: u64) -> u64 {
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

    pub(crate) fn force(&self, logged: &mut Logged, requests: u64, at: u64) {
        let kept = requests.min(u64::try_from(self.limit).unwrap_or(u64::MAX));
        let at = at.max(logged.last());
        (0..kept).for_each(|_| self.push(logged, at));
    }

    pub(crate) fn is_same(&self, one: &Logged, other: &Logged, at: u64) -> bool {
        let [one, other] = [one, other].map(|it| it.moments.range(self.first_within(it, at)..));
        one.eq(other)
    }

    pub(crate) fn give_back(&self, logged: &mut Logged, requests: u64, at: u64) {
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

    pub(crate) fn is_idle(&self, logged: &Logged, now: u64) -> bool {
        self.used(logged, now) == 0
    }

    pub(crate) fn used(&self, logged: &Logged, now: u64) -> u64 {
        let used = logged.moments.len() - self.first_within(logged, now);
        u64::try_from(used).unwrap_or(u64::MAX)
    }
}
