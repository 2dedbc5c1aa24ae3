//! Temporary restrictions of counters, derived from partner responses: no request, or at most N requests, until a time.
//!
//! A restriction can only lower what the limits allow, and it expires.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::CounterKey;

/// Maximum number of restricted counters.
pub(super) const COUNTERS_MAX: usize = 100_000;

/// Pause after a 429 without a time; doubled for each consecutive one.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Maximum of this pause.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Maximum lifetime of a restriction.
const TTL_MAX: Duration = Duration::from_secs(3_600);

/// Nanoseconds between two scans for expired entries. A scan of a full table takes some milliseconds, under the lock.
const SCAN_INTERVAL: u64 = 10_000_000_000;

/// Response of a partner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Feedback {
    /// HTTP status.
    pub status: u16,
    /// Numbers of remaining requests, each with the time for which it must suffice.
    pub windows: Vec<(u64, Duration)>,
}

/// At most `remaining` requests before `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Restriction {
    until: u64,
    remaining: u64,
}

/// Maximum number of restrictions of a counter. Beyond it, the two with the closest ends are merged into the stricter one.
const RESTRICTIONS_MAX: usize = 4;

/// Feedback of one counter.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct CounterFeedback {
    /// Sorted by end; a later end leaves more requests.
    restrictions: Vec<Restriction>,
    /// Number of consecutive 429s without a time.
    refusals: u8,
}

impl CounterFeedback {
    fn add(&mut self, new: Restriction, now: u64) {
        let covers = |it: &Restriction, other: &Restriction| {
            it.until >= other.until && it.remaining <= other.remaining
        };
        self.restrictions
            .retain(|it| it.until > now && !covers(&new, it));
        if self.restrictions.iter().any(|it| covers(it, &new)) {
            return;
        }
        let index = self.restrictions.partition_point(|it| it.until < new.until);
        self.restrictions.insert(index, new);
        if self.restrictions.len() > RESTRICTIONS_MAX {
            let pairs = self.restrictions.windows(2).zip(0..);
            let closest = pairs.min_by_key(|(two, _)| two[1].until - two[0].until);
            let closest = closest.map_or(0, |(_, index)| index);
            let remaining = self.restrictions.remove(closest).remaining;
            self.restrictions[closest].remaining = remaining;
        }
    }

    /// Moves all ends back, because the clock was set back.
    pub(super) fn set_back(&mut self, nanos: u64) {
        for restriction in &mut self.restrictions {
            restriction.until = restriction.until.saturating_sub(nanos);
        }
    }

    /// Whether a restriction is active, or a 429 now would continue the sequence of refusals.
    fn is_active(&self, now: u64) -> bool {
        let row = if self.refusals > 0 {
            nanos(PAUSE_MAX)
        } else {
            0
        };
        let end = self.restrictions.last().map_or(0, |it| it.until);
        end.saturating_add(row) > now
    }
}

/// Feedback of all counters. Half of the [`COUNTERS_MAX`] entries are divided equally among all limits; the other half is
/// first come, first served.
#[derive(Debug, Default)]
pub(super) struct FeedbackTable {
    entries: HashMap<CounterKey, CounterFeedback, foldhash::fast::RandomState>,
    scanned_at: u64,
    /// Number of entries by limit.
    by_limit: HashMap<Arc<str>, usize>,
    /// Number of active limits.
    limits: usize,
    /// Counters changed since the last [`take_changes`](Self::take_changes).
    changed: HashSet<CounterKey>,
}

impl FeedbackTable {
    /// Applies a response; returns whether it adds a restriction. A full table ignores it.
    pub(super) fn apply(&mut self, counter: &CounterKey, feedback: &Feedback, now: u64) -> bool {
        let mut refusals = 0;
        if let Some(entry) = self.entries.get_mut(counter) {
            // Any other status ends the sequence.
            if !matches!(feedback.status, 429 | 503) && std::mem::take(&mut entry.refusals) > 0 {
                self.changed.insert(counter.clone());
            }
            let entry = &self.entries[counter];
            refusals = if entry.is_active(now) {
                entry.refusals
            } else {
                0
            };
        }
        let windows = feedback.windows.iter().copied();
        let mut restrictions: Vec<_> = windows.filter(|(_, wait)| !wait.is_zero()).collect();
        let has_pause = restrictions.iter().any(|(remaining, _)| *remaining == 0);
        if feedback.status == 429 && !has_pause {
            let pause = PAUSE_MIN * 2_u32.pow(u32::from(refusals.min(6)));
            refusals = refusals.saturating_add(1);
            restrictions.push((0, pause.min(PAUSE_MAX)));
        }
        if restrictions.is_empty() {
            return false;
        }
        let Some(entry) = self.entry(counter) else {
            return false;
        };
        entry.refusals = refusals;
        for (remaining, wait) in restrictions {
            let until = now.saturating_add(nanos(wait.min(TTL_MAX)));
            entry.add(Restriction { until, remaining }, now);
        }
        self.changed.insert(counter.clone());
        true
    }

    /// Restores the feedback of a counter; returns false if the table is full.
    pub(super) fn restore(&mut self, counter: &CounterKey, saved: CounterFeedback) -> bool {
        self.entry(counter).map(|entry| *entry = saved).is_some()
    }

    /// Calls `each` for each counter changed since the last call; with `None` for removed ones.
    pub(super) fn take_changes(
        &mut self,
        mut each: impl FnMut(&CounterKey, Option<&CounterFeedback>),
    ) {
        for counter in std::mem::take(&mut self.changed) {
            each(&counter, self.entries.get(&counter));
        }
    }

    /// Returns the entry of a counter, created if missing; `None` if the table is full.
    fn entry(&mut self, counter: &CounterKey) -> Option<&mut CounterFeedback> {
        if !self.entries.contains_key(counter) {
            let of_limit = self.by_limit.entry(Arc::clone(&counter.0)).or_default();
            let guaranteed = COUNTERS_MAX / 2 / self.limits.max(1);
            if self.entries.len() >= COUNTERS_MAX / 2 && *of_limit >= guaranteed {
                return None;
            }
            *of_limit += 1;
        }
        Some(self.entries.entry(counter.clone()).or_default())
    }

    /// Restrictions of these counters that end after `now`.
    fn active<'a>(
        &'a self,
        counters: &'a [CounterKey],
        now: u64,
    ) -> impl Iterator<Item = &'a Restriction> {
        let entries = counters.iter().filter_map(|it| self.entries.get(it));
        let restrictions = entries.flat_map(|entry| &entry.restrictions);
        restrictions.filter(move |it| it.until > now)
    }

    /// Time before which `requests` must not be sent; 0 if unrestricted.
    pub(super) fn earliest(&self, counters: &[CounterKey], requests: u64, now: u64) -> u64 {
        if self.entries.is_empty() {
            return 0;
        }
        let blocking = self.active(counters, now);
        let blocking = blocking.filter(|it| it.remaining < requests);
        blocking.map(|it| it.until).max().unwrap_or(0)
    }

    /// The minimum of remaining requests, and its end.
    pub(super) fn remaining(&self, counters: &[CounterKey], now: u64) -> Option<(u64, u64)> {
        let active = self.active(counters, now);
        let strictest = active.min_by_key(|it| (it.remaining, u64::MAX - it.until))?;
        Some((strictest.remaining, strictest.until))
    }

    /// Subtracts requests that are sent at `at`.
    pub(super) fn consume(&mut self, counters: &[CounterKey], requests: u64, at: u64) {
        if self.entries.is_empty() {
            return;
        }
        for counter in counters {
            let Some(entry) = self.entries.get_mut(counter) else {
                continue;
            };
            for restriction in entry.restrictions.iter_mut().filter(|it| it.until > at) {
                restriction.remaining = restriction.remaining.saturating_sub(requests);
            }
            self.changed.insert(counter.clone());
        }
    }

    /// Subtracts requests on which a decision is pending. Returns the ends of the affected restrictions, for
    /// [`release`](Self::release).
    pub(super) fn hold(&mut self, counters: &[CounterKey], requests: u64, at: u64) -> Vec<u64> {
        let untils = self.active(counters, at).map(|it| it.until).collect();
        self.consume(counters, requests, at);
        untils
    }

    /// Adds requests from [`hold`](Self::hold) back to the restrictions with these ends.
    pub(super) fn release(&mut self, counters: &[CounterKey], requests: u64, untils: &[u64]) {
        for counter in counters.iter().filter(|_| !untils.is_empty()) {
            let Some(entry) = self.entries.get_mut(counter) else {
                continue;
            };
            for restriction in &mut entry.restrictions {
                if untils.contains(&restriction.until) {
                    restriction.remaining = restriction.remaining.saturating_add(requests);
                }
            }
            self.changed.insert(counter.clone());
        }
    }

    /// Removes expired entries if [`SCAN_INTERVAL`] has passed since the last scan.
    pub(super) fn expire(&mut self, now: u64) {
        if now.saturating_sub(self.scanned_at) >= SCAN_INTERVAL {
            self.scanned_at = now;
            self.retain(|_, entry| entry.is_active(now));
        }
    }

    /// Sets the number of active limits, and removes the entries of inactive ones.
    pub(super) fn set_limits(&mut self, limits: usize, is_active: impl Fn(&str) -> bool) {
        self.limits = limits;
        self.retain(|limit, _| is_active(limit));
    }

    fn retain(&mut self, is_kept: impl Fn(&str, &CounterFeedback) -> bool) {
        let removed = self
            .entries
            .extract_if(|(limit, _), entry| !is_kept(limit, entry));
        for (counter, _) in removed {
            if let Some(of_limit) = self.by_limit.get_mut(&counter.0) {
                *of_limit -= 1;
            }
            self.changed.insert(counter);
        }
    }

    /// Number of restricted counters of a limit.
    pub(super) fn counters_of(&self, limit: &str) -> usize {
        self.by_limit.get(limit).copied().unwrap_or(0)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const REFUSED: Feedback = Feedback {
        status: 429,
        windows: Vec::new(),
    };

    fn counters() -> [CounterKey; 1] {
        [(Arc::from("a"), Arc::from("k"))]
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn remaining(requests: u64, wait: u64) -> Feedback {
        Feedback {
            status: 200,
            windows: vec![(requests, seconds(wait))],
        }
    }

    #[test]
    fn restriction_only_lowers_the_limit_and_expires() {
        let mut table = FeedbackTable::default();
        let of = counters();
        assert!(table.apply(&of[0], &remaining(5, 10), 0));
        assert_eq!(table.earliest(&of, 5, 0), 0);
        assert_eq!(table.earliest(&of, 6, 0), 10 * SECOND);
        table.consume(&of, 3, SECOND);
        assert_eq!(table.earliest(&of, 3, SECOND), 10 * SECOND);
        // A higher number does not replace a lower one before it expires.
        assert!(table.apply(&of[0], &remaining(50, 5), SECOND));
        assert_eq!(table.earliest(&of, 3, SECOND), 10 * SECOND);
        assert_eq!(table.earliest(&of, 100, 10 * SECOND), 0);
        assert!(table.apply(&of[0], &remaining(50, 5), 10 * SECOND));
        assert_eq!(table.earliest(&of, 50, 10 * SECOND), 0);
        // The lifetime is bounded.
        assert!(table.apply(&of[0], &remaining(0, 1_000_000), 20 * SECOND));
        assert_eq!(table.earliest(&of, 1, 20 * SECOND), 3_620 * SECOND);
        table.expire(3_620 * SECOND);
        assert!(table.entries.is_empty());
    }

    #[test]
    fn pause_after_refusals_without_a_time_doubles_up_to_a_minute() {
        let mut table = FeedbackTable::default();
        let of = counters();
        let mut now = 0;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(table.apply(&of[0], &REFUSED, now));
            assert_eq!(table.earliest(&of, 1, now), now + wait * SECOND);
            // The next call is sent at the end of the pause, and refused as well.
            now += wait * SECOND;
        }
        let accepted = Feedback {
            status: 200,
            ..Feedback::default()
        };
        assert!(!table.apply(&of[0], &accepted, now));
        assert!(table.apply(&of[0], &REFUSED, now));
        assert_eq!(table.earliest(&of, 1, now), now + SECOND);
        assert!(!FeedbackTable::default().apply(&of[0], &accepted, 0));
        let with_time = Feedback {
            windows: vec![(0, seconds(7))],
            ..REFUSED
        };
        let mut table = FeedbackTable::default();
        assert!(table.apply(&of[0], &with_time, 0));
        assert_eq!(table.earliest(&of, 1, 0), 7 * SECOND);
    }

    #[test]
    fn short_and_long_restrictions_apply_until_their_own_ends() {
        let mut table = FeedbackTable::default();
        let of = counters();
        assert!(table.apply(&of[0], &remaining(4_000, 3_500), 0));
        assert!(table.apply(&of[0], &REFUSED, 0));
        assert_eq!(table.earliest(&of, 1, 0), SECOND);
        table.consume(&of, 3_990, SECOND);
        assert!(table.apply(&of[0], &remaining(5, 10), SECOND));
        assert_eq!(table.earliest(&of, 5, SECOND), 0);
        assert_eq!(table.earliest(&of, 6, SECOND), 11 * SECOND);
        assert_eq!(table.earliest(&of, 11, SECOND), 3_500 * SECOND);
        // One response can add two.
        let both = Feedback {
            status: 200,
            windows: vec![(0, seconds(2)), (3, seconds(20))],
        };
        assert!(table.apply(&of[0], &both, SECOND));
        assert_eq!(table.earliest(&of, 1, SECOND), 3 * SECOND);
        assert_eq!(table.earliest(&of, 4, SECOND), 21 * SECOND);
        // Beyond the maximum number, the closest two are merged into the stricter one.
        for wait in 1..100 {
            table.apply(&of[0], &remaining(1_000 + wait, 100 * wait), SECOND);
        }
        assert_eq!(table.entries[&of[0]].restrictions.len(), RESTRICTIONS_MAX);
        assert_eq!(table.earliest(&of, 4, SECOND), 21 * SECOND);
        assert_eq!(table.earliest(&of, 11, SECOND), 3_501 * SECOND);
    }

    #[test]
    fn refusal_with_a_time_of_zero_pauses_like_one_without_a_time() {
        let refused = Feedback {
            windows: vec![(0, Duration::ZERO)],
            ..REFUSED
        };
        let mut table = FeedbackTable::default();
        assert!(table.apply(&counters()[0], &refused, 0));
        assert!(table.apply(&counters()[0], &refused, SECOND));
        assert_eq!(table.earliest(&counters(), 1, SECOND), 3 * SECOND);
    }

    #[test]
    fn counters_of_one_limit_cannot_fill_the_table() {
        let mut table = FeedbackTable::default();
        table.set_limits(4, |_| true);
        let mut apply = |limit: usize, counter: usize| {
            let [limit, counter] = [limit, counter].map(|it| Arc::from(it.to_string()));
            table.apply(&(limit, counter), &REFUSED, 0)
        };
        let applied = [0, 1].map(|limit| (0..COUNTERS_MAX).filter(|it| apply(limit, *it)).count());
        assert_eq!(applied, [50_000, 12_500]);
        // A counter in the table is updated.
        assert!(apply(0, 1));
        table.set_limits(4, |limit| limit != "0");
        assert_eq!(
            (table.counters_of("0"), table.counters_of("1")),
            (0, 12_500)
        );
        table.expire(SCAN_INTERVAL);
        assert_eq!(table.entries.len(), 12_500);
        table.expire(100 * SECOND);
        assert_eq!((table.entries.len(), table.counters_of("1")), (0, 0));
        // Removed entries leave capacity.
        let counter = (Arc::from("1"), Arc::from("again"));
        assert!(table.apply(&counter, &REFUSED, 100 * SECOND));
        assert_eq!(table.entries.len(), 1);
    }
}
