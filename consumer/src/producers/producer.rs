//! One producer: how far it was received, is durable, and goes as far as is known. Pure.

use tokio::time::Instant;

use super::skew::{Arrival, Skew};
use crate::batch::Cursor;

/// What is known of a producer.
#[derive(Debug, Default)]
pub(super) struct Producer {
    /// How far it was received or declared lost; at first, where the store stood.
    received: Option<Cursor>,
    /// The table's count of changes when that moved last.
    moved: u64,
    /// How far it is durable: epoch and sequence.
    durable: Option<(u64, u64)>,
    /// How far it goes, as far as is known.
    newest: Option<Newest>,
    skew: Skew,
    /// Streams that are open.
    streams: usize,
    /// What this process saw of the epoch that it watches.
    observed: Option<ObservedRange>,
    duplicate_reported: bool,
}

/// How far an epoch of a producer goes, as far as is known.
#[derive(Debug, Clone, Copy)]
struct Newest {
    epoch: u64,
    /// Before the first sequence that was asked for.
    from: u64,
    sequence: u64,
}

/// What is shown of a producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProducerStatus {
    /// Whether an address reads from it, or did last.
    pub is_read: bool,
    /// Streams that are open.
    pub streams: usize,
    /// How far it is durable: epoch and sequence.
    pub durable: Option<(u64, u64)>,
    /// Cookies that it is known to have and that are not durable here.
    pub lag_cookies: Option<u64>,
    /// How far our clock is ahead of its, at most, in microseconds: the least time from accepted there to received here in the
    /// last one to two minutes.
    pub skew_micros: Option<i64>,
}

/// What a process saw of one epoch of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedRange {
    /// The epoch.
    pub epoch: u64,
    /// The first sequence that it watched.
    pub from: u64,
    /// Cookies from there on that it will not get, by gaps.
    pub lost_in_gaps: u64,
}

/// What a stream that advanced found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvanceResult {
    /// Nothing out of the ordinary.
    Normal,
    /// Another stream with the same producer id but another epoch is open and advances by turns with this one:
    /// two producers have one id.
    Duplicate {
        /// Whether this was found of this id for the first time.
        is_first: bool,
    },
}

impl ObservedRange {
    /// Nothing yet, of what follows this cursor in its epoch.
    #[must_use]
    pub fn after(cursor: &Cursor) -> Self {
        Self {
            epoch: cursor.epoch,
            from: cursor.sequence.saturating_add(1),
            lost_in_gaps: 0,
        }
    }
}

impl Producer {
    pub(super) fn received(&self) -> Option<&Cursor> {
        self.received.as_ref()
    }

    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    pub(super) fn streams(&self) -> usize {
        self.streams
    }

    /// Whether there is anything to know when no address reads from it.
    pub(super) fn is_known(&self) -> bool {
        self.received.is_some() || self.durable.is_some() || self.streams > 0
    }

    /// Whether the store has a cursor of it.
    pub(super) fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// The store stands at `cursor`.
    pub(super) fn loaded(&mut self, cursor: Cursor) {
        self.committed(&cursor);
        self.received = Some(cursor);
    }

    /// `cursor` is durable.
    pub(super) fn committed(&mut self, cursor: &Cursor) {
        self.durable = Some((cursor.epoch, cursor.sequence));
    }

    /// A stream goes on after `at`, and it has everything up to `newest`. Of the epoch before, what
    /// `before` says was received. Returns what this process saw of that one, unless another stream came upon this one first.
    pub(super) fn opened(
        &mut self,
        at: &Cursor,
        newest: u64,
        before: Option<&Cursor>,
    ) -> Option<ObservedRange> {
        self.streams += 1;
        self.has(at, newest);
        if self.observed.is_some_and(|it| it.epoch == at.epoch) {
            return None;
        }
        let seen = self.observed.replace(ObservedRange::after(at));
        let before = before?;
        let seen = seen.filter(|seen| seen.epoch == before.epoch);
        Some(seen.unwrap_or_else(|| ObservedRange::after(before)))
    }

    /// A stream ended.
    pub(super) fn closed(&mut self) {
        self.streams = self.streams.saturating_sub(1);
    }

    /// A stream came as far as `cursor`, which is the change of this number; `had_advanced` before.
    pub(super) fn advanced(
        &mut self,
        cursor: &Cursor,
        change: u64,
        had_advanced: bool,
    ) -> AdvanceResult {
        self.has(cursor, cursor.sequence);
        self.moved = change;
        let received = self.received.get_or_insert_with(|| cursor.clone());
        // This stream has set its own epoch before, and somebody else another one since.
        let is_duplicate = had_advanced && self.streams > 1 && received.epoch != cursor.epoch;
        received.advance(cursor);
        if is_duplicate {
            let is_first = !std::mem::replace(&mut self.duplicate_reported, true);
            AdvanceResult::Duplicate { is_first }
        } else {
            AdvanceResult::Normal
        }
    }

    /// A chunk came.
    pub(super) fn arrived(&mut self, arrival: Arrival, now: Instant) {
        self.skew.note(arrival, now);
    }

    /// Cookies of an epoch will not come; returns how many of it by now.
    pub(super) fn lost(&mut self, epoch: u64, cookies: u64) -> u64 {
        let Some(observed) = self.observed.as_mut().filter(|it| it.epoch == epoch) else {
            return cookies;
        };
        observed.lost_in_gaps = observed.lost_in_gaps.saturating_add(cookies);
        observed.lost_in_gaps
    }

    /// The store keeps no cursor of it any more, and neither is one kept here unless a stream is open.
    pub(super) fn forget(&mut self) -> Option<Cursor> {
        self.durable = None;
        if self.streams > 0 {
            return None;
        }
        std::mem::take(self).received
    }

    pub(super) fn status(&self, is_read: bool, now: Instant) -> ProducerStatus {
        ProducerStatus {
            is_read,
            streams: self.streams,
            durable: self.durable,
            lag_cookies: self.lag(),
            skew_micros: self.skew.least(now),
        }
    }

    /// It is known to have `sequence` in the epoch of `from`, of which everything after that was asked for.
    fn has(&mut self, from: &Cursor, sequence: u64) {
        match &mut self.newest {
            Some(newest) if newest.epoch == from.epoch => {
                newest.sequence = newest.sequence.max(sequence);
            }
            newest => {
                *newest = Some(Newest {
                    epoch: from.epoch,
                    from: from.sequence,
                    sequence,
                });
            }
        }
    }

    fn lag(&self) -> Option<u64> {
        let Newest {
            epoch,
            from,
            sequence,
        } = self.newest?;
        let stands = match self.durable {
            Some((durable, at)) if durable == epoch => at,
            _ => from,
        };
        Some(sequence.saturating_sub(stands))
    }
}
