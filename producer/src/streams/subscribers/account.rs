//! The account of one subscriber: the outcome of every cookie since it joined. Does no I/O.
//!
//! # The balance
//!
//! The account begins at the sequence number `joined`. Each cookie from there up to, but not including, `high_water` is
//! either *delivered* (handed to a stream) or *lost* (reported in a gap). Cookies from `high_water` on are *queued*. At any
//! time, if `appended` is read after the account:
//!
//! ```text
//! appended + 1 - joined = (delivered - undelivered) + (lost - recovered) + queued
//! ```
//!
//! Counters never decrease, so a cookie whose outcome changes is counted again, on both sides:
//! - A delivered cookie is inside a gap of a later stream: it never arrived, and the log has evicted it. It counts as
//!   *lost* and *undelivered*.
//! - A lost cookie is delivered, because the subscriber reconnected with an older cursor, to which the maximum lag does not
//!   apply. It counts as *delivered* and *recovered*.
//!
//! # Assumptions
//!
//! - If a stream begins after `high_water`, the subscriber has received everything before its cursor: the cookies in between
//!   count as delivered.
//! - If a stream begins before `joined`, its cursor proves that the cookies in between were received under an account that
//!   was removed. They count as delivered: if they are sent again they are *redelivered*, and in a gap they are lost and
//!   undelivered.
//! - The same applies if a stream begins before `joined` because its cursor is of another epoch, although the cookies are new
//!   to the subscriber. This happens only if a subscriber joins at the newest cookie and then uses an older cursor.
//! - Delivered means handed to a stream. Only the cursor of the next stream shows whether a disconnected client has
//!   received the cookies.
//!
//! # Bound
//!
//! Only the newest [`LOST_RANGES_MAX`] ranges of lost cookies are stored. Cookies up to the end of a dropped range keep
//! their outcome. If they are delivered again, they count as redelivered; if they are in another gap, they do not count.
//! The balance stays exact; only *recovered* and *undelivered* may be too low.

use std::collections::VecDeque;

use proto::units::Sequence;

use crate::log::GapReason;

/// Maximum number of ranges of lost cookies. A range is added before another is dropped, so 1,024 of them take 16 KiB per
/// subscriber.
pub(super) const LOST_RANGES_MAX: usize = 1023;

/// The account of one subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    /// The first sequence number of the account.
    pub(super) joined: Sequence,
    /// The sequence number after the newest one ever delivered or lost.
    pub(super) high_water: Sequence,
    /// The sequence number after the last one taken from the log by the current or latest stream.
    pub(super) position: Sequence,
    lost_ranges: Ranges,
    pub(super) totals: Totals,
}

/// Counters of cookies, unless stated otherwise. They never decrease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Handed to a stream for the first time, or for the first time after being lost.
    pub delivered: u64,
    /// Handed to a stream again after a resume.
    pub redelivered: u64,
    /// Lost because the subscriber exceeded the maximum lag.
    pub lost_lag_limit: u64,
    /// Lost because the log had evicted them.
    pub lost_evicted: u64,
    /// First counted as delivered, then as lost.
    pub undelivered: u64,
    /// First counted as lost, then as delivered.
    pub recovered: u64,
    /// Bytes handed to streams.
    pub bytes: u64,
    /// Streams opened.
    pub streams: u64,
}

impl Totals {
    /// All lost cookies.
    pub fn lost(&self) -> u64 {
        self.lost_lag_limit + self.lost_evicted
    }
}

/// The records that were sent to a subscriber.
#[derive(Debug, Clone)]
pub(super) struct Received {
    /// The first sequence number of its account.
    pub(super) joined: Sequence,
    /// The sequence number after the last one taken from the log.
    pub(super) next: Sequence,
    /// The first sequence number after the lost ranges that are no longer stored.
    pub(super) certain_from: Sequence,
    /// Lost ranges, inclusive.
    pub(super) lost: Vec<(Sequence, Sequence)>,
}

impl Account {
    /// The account of a subscriber whose first stream is about to [begin](Self::begin) at `joined`.
    pub(super) fn new(joined: Sequence) -> Self {
        Self {
            joined,
            high_water: joined,
            position: joined,
            lost_ranges: Ranges::new(LOST_RANGES_MAX),
            totals: Totals::default(),
        }
    }

    /// Records that a stream begins at `began`; see the assumptions above.
    pub(super) fn begin(&mut self, began: Sequence) {
        self.totals.streams += 1;
        self.totals.delivered += self.joined.since(began);
        self.joined = self.joined.min(began);
        self.totals.delivered += began.since(self.high_water);
        self.high_water = self.high_water.max(began);
        self.position = began;
    }

    /// Records that `first..=last` were handed to the stream.
    pub(super) fn deliver(&mut self, first: Sequence, last: Sequence) {
        let new = self.pass(first, last);
        let recovered = self.lost_ranges.take(first, last);
        self.totals.recovered += recovered;
        self.totals.delivered += new + recovered;
        self.totals.redelivered += (last + 1).since(first) - new - recovered;
    }

    /// Records that the stream skipped `first..=last`.
    pub(super) fn lose(&mut self, first: Sequence, last: Sequence, reason: GapReason) {
        let new = self.pass(first, last);
        let first = first.max(self.lost_ranges.floor);
        let undelivered = if first <= last {
            let known = self.lost_ranges.take(first, last);
            self.lost_ranges.put(first, last);
            (last + 1).since(first) - new - known
        } else {
            0
        };
        self.totals.undelivered += undelivered;
        let lost = match reason {
            GapReason::LagLimit => &mut self.totals.lost_lag_limit,
            GapReason::Evicted => &mut self.totals.lost_evicted,
        };
        *lost += new + undelivered;
    }

    /// Moves the position past these cookies; returns how many of them are passed for the first time.
    fn pass(&mut self, first: Sequence, last: Sequence) -> u64 {
        debug_assert!(
            self.joined <= first && first <= self.high_water,
            "a stream continues from its position"
        );
        let next = last + 1;
        let new = next.since(first.max(self.high_water));
        self.high_water = self.high_water.max(next);
        self.position = next;
        new
    }

    /// The records that were sent.
    pub(super) fn received(&self) -> Received {
        Received {
            joined: self.joined,
            next: self.position,
            certain_from: self.lost_ranges.floor,
            lost: self.lost_ranges.ranges.iter().copied().collect(),
        }
    }
}

/// Disjoint, non-adjacent ranges of sequence numbers in ascending order; only the newest `max`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges {
    /// First and last sequence number, inclusive.
    ranges: VecDeque<(Sequence, Sequence)>,
    max: usize,
    /// Ranges before this sequence number were dropped.
    floor: Sequence,
}

impl Ranges {
    fn new(max: usize) -> Self {
        Self {
            ranges: VecDeque::new(),
            max,
            floor: Sequence(0),
        }
    }

    /// Removes `first..=last`; returns how many of these numbers were contained.
    fn take(&mut self, first: Sequence, last: Sequence) -> u64 {
        // The usual case: the stream is beyond all losses.
        if self.ranges.back().is_none_or(|&(_, newest)| newest < first) {
            return 0;
        }
        let from = self.ranges.partition_point(|&(_, end)| end < first);
        let to = self.ranges.partition_point(|&(begin, _)| begin <= last);
        if from >= to {
            return 0;
        }
        let (left, right) = (self.ranges[from].0, self.ranges[to - 1].1);
        let removed = self
            .ranges
            .drain(from..to)
            .map(|(begin, end)| (end.min(last) + 1).since(begin.max(first)))
            .sum();
        if last < right {
            self.ranges.insert(from, (last + 1, right));
        }
        if left < first {
            self.ranges.insert(from, (left, first - 1));
        }
        self.bound();
        removed
    }

    /// Adds `first..=last`, of which none is contained.
    fn put(&mut self, mut first: Sequence, mut last: Sequence) {
        let mut at = self.ranges.partition_point(|&(_, end)| end < first);
        if let Some(&(begin, end)) = self.ranges.get(at)
            && begin == last + 1
        {
            last = end;
            self.ranges.remove(at);
        }
        if at > 0 && self.ranges[at - 1].1 + 1 == first {
            at -= 1;
            first = self.ranges[at].0;
            self.ranges.remove(at);
        }
        self.ranges.insert(at, (first, last));
        self.bound();
    }

    fn bound(&mut self) {
        while self.ranges.len() > self.max {
            if let Some((_, last)) = self.ranges.pop_front() {
                self.floor = last + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
