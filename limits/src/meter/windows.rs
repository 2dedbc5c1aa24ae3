//! Windows with a counter: the fixed window, and the sliding counter, which is two of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Method;
use crate::{algorithm::Alignment, rate::Time};

/// So many in each window.
#[derive(Debug, Clone)]
pub(crate) struct Fixed {
    limit: u64,
    window: u64,
    aligned: Alignment,
}

/// The latest window in which something was taken.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Window {
    start: u64,
    count: u64,
}

impl Fixed {
    pub(crate) fn new(limit: u64, window: Duration, aligned: Alignment) -> Self {
        Self {
            limit,
            window: Time::from(window).0,
            aligned,
        }
    }

    fn end(&self, window: &Window) -> u64 {
        window.start.saturating_add(self.window)
    }
}

impl Method for Fixed {
    type Amount = Window;

    fn fresh(&self) -> Window {
        Window::default()
    }

    fn takes_over(&self, from: &Self, _window: &mut Window) -> bool {
        (self.window, self.aligned) == (from.window, from.aligned)
    }

    fn reach(&self) -> u64 {
        self.window
    }

    fn earliest(&self, window: &Window, requests: u64, from: u64) -> u64 {
        let from = from.max(window.start);
        let end = self.end(window);
        let has_room = window.count.saturating_add(requests) <= self.limit;
        if window.count == 0 || has_room || from >= end {
            from
        } else {
            end
        }
    }

    fn force(&self, window: &mut Window, requests: u64, at: u64) {
        if window.count == 0 || at >= self.end(window) {
            window.start = match self.aligned {
                Alignment::Clock => at - at % self.window,
                Alignment::FirstCall => at,
            };
            window.count = 0;
        }
        window.count = window.count.saturating_add(requests);
    }

    fn is_same(&self, one: &Window, other: &Window, at: u64) -> bool {
        let as_at = |it: &Window| (self.used(it, at) > 0).then_some((it.start, it.count));
        as_at(one) == as_at(other)
    }

    fn give_back(&self, window: &mut Window, requests: u64, at: u64) {
        if at < window.start {
            // When windows begin with calls, where the one before began is not known any more.
            if window.count > 0 || self.aligned == Alignment::FirstCall {
                return;
            }
            // Nothing is left of the latest window. The one before had no room, or somebody would not have waited.
            let windows = (window.start - at).div_ceil(self.window);
            window.start = window
                .start
                .saturating_sub(windows.saturating_mul(self.window));
            window.count = self.limit;
        }
        window.count = window.count.saturating_sub(requests);
    }

    fn is_idle(&self, window: &Window, now: u64) -> bool {
        window.count == 0 || self.end(window) <= now
    }

    fn used(&self, window: &Window, now: u64) -> u64 {
        if self.end(window) <= now {
            0
        } else {
            window.count
        }
    }
}

/// So many in a window and the share of the one before that the sliding window still covers.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    limit: u64,
    window: u64,
}

/// The latest window in which something was taken, and the one before.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Counts {
    start: u64,
    before: u64,
    count: u64,
}

impl Counter {
    pub(crate) fn new(limit: u64, window: Duration) -> Self {
        Self {
            limit,
            window: Time::from(window).0,
        }
    }

    /// The counts as they are at `at`.
    fn at(&self, counts: &Counts, at: u64) -> Counts {
        let start = at - at % self.window;
        let (before, count) = match start.saturating_sub(counts.start) / self.window {
            0 => return counts.clone(),
            1 => (counts.count, 0),
            _ => (0, 0),
        };
        Counts {
            start,
            before,
            count,
        }
    }
}

impl Method for Counter {
    type Amount = Counts;

    fn fresh(&self) -> Counts {
        Counts::default()
    }

    fn takes_over(&self, from: &Self, _counts: &mut Counts) -> bool {
        self.window == from.window
    }

    fn reach(&self) -> u64 {
        self.window.saturating_mul(2)
    }

    fn earliest(&self, counts: &Counts, requests: u64, from: u64) -> u64 {
        let mut from = from.max(counts.start);
        // In this window, in the next, or in the one after that, of which nothing is known yet.
        for _ in 0..2 {
            let counts = self.at(counts, from);
            let end = counts.start.saturating_add(self.window);
            let room = self
                .limit
                .checked_sub(counts.count.saturating_add(requests));
            if let Some(room) = room {
                // before · (window - elapsed) <= room · window
                let covered = match counts.before {
                    0 => self.window,
                    before => {
                        let covered = u128::from(room) * u128::from(self.window);
                        let covered = covered / u128::from(before);
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

    fn force(&self, counts: &mut Counts, requests: u64, at: u64) {
        *counts = self.at(counts, at);
        counts.count = counts.count.saturating_add(requests);
    }

    fn tell(&self, counts: &mut Counts, requests: u64, at: u64, _latest: u64) {
        // More than ever goes at once makes a key wait no longer than that.
        self.force(counts, requests.min(self.limit), at);
    }

    fn is_same(&self, one: &Counts, other: &Counts, at: u64) -> bool {
        let as_at = |it: &Counts| {
            let it = self.at(it, at);
            (it.start, it.before, it.count)
        };
        as_at(one) == as_at(other)
    }

    fn give_back(&self, counts: &mut Counts, requests: u64, at: u64) {
        let known = if counts.count == 0 { 2 } else { 1 };
        if at < counts.start.saturating_sub(known * self.window) {
            return;
        }
        // Nothing is left of the latest window: the one before is the latest, and that before it was full, for all that is known.
        while at < counts.start && counts.count == 0 && counts.start >= self.window {
            counts.start -= self.window;
            counts.count = std::mem::replace(&mut counts.before, self.limit);
        }
        if at >= counts.start {
            counts.count = counts.count.saturating_sub(requests);
        } else {
            counts.before = counts.before.saturating_sub(requests);
        }
    }

    fn is_idle(&self, counts: &Counts, now: u64) -> bool {
        let at = self.at(counts, now);
        at.before == 0 && at.count == 0
    }

    /// Rounded up.
    fn used(&self, counts: &Counts, now: u64) -> u64 {
        let at = self.at(counts, now);
        let left = at.start.saturating_add(self.window).saturating_sub(now);
        let before = u128::from(at.before) * u128::from(left);
        let before = before.div_ceil(u128::from(self.window));
        at.count
            .saturating_add(u64::try_from(before).unwrap_or(u64::MAX))
    }
}
