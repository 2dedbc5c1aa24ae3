//! State of one producer: its received, durable and newest known positions. Does no I/O.

use std::sync::Arc;

use proto::{
    cursor::Position,
    units::{Epoch, Sequence, UnixMicros},
};

use tokio::time::Instant;

use super::completeness::Completeness;
use crate::{batch::Cursor, clock_offset::ClockOffset};

/// State of a producer.
#[derive(Debug, Default)]
pub(super) struct Producer {
    /// Position up to which cookies were received or declared lost; initially the cursor of the store.
    pub(super) received: Option<Cursor>,
    /// The change number of the table at its last advance.
    pub(super) advanced_at: u64,
    /// Durable position.
    pub(super) durable: Option<Position>,
    newest: Option<NewestPosition>,
    /// The difference of its clock, if measured since the start of this process.
    pub(super) offset: Option<ClockOffset>,
    /// Completeness in the current epoch.
    completeness: Completeness,
    /// Number of open streams.
    pub(super) streams: usize,
    /// When the last stream was closed, if this process had one.
    pub(super) closed: Option<Instant>,
    /// The part of the current epoch that this process observed.
    observed: Option<ObservedRange>,
    /// Whether two producers with this id have open streams.
    has_duplicate: bool,
}

/// The newest known position of a producer.
#[derive(Debug, Clone, Copy)]
struct NewestPosition {
    epoch: Epoch,
    /// The sequence number before the first requested one.
    from: Sequence,
    sequence: Sequence,
}

/// Status of a producer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProducerStatus {
    /// Whether the producer is the last one that responded at an address.
    pub has_address: bool,
    /// Number of open streams.
    pub streams: usize,
    /// Durable position.
    pub durable: Option<Position>,
    /// Known cookies that are not durable here.
    pub lag_cookies: Option<u64>,
    /// Upper bound of how far this host's clock is ahead of the producer's, in microseconds.
    pub skew_micros: Option<i64>,
    /// Whether two producers with this id have open streams.
    pub has_duplicate: bool,
}

/// The part of one epoch of a producer that this process observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedRange {
    /// The epoch.
    pub epoch: Epoch,
    /// The first observed sequence number.
    pub from: Sequence,
    /// Cookies lost in gaps from `from` on.
    pub lost_in_gaps: u64,
    /// The last of them; 0 if there are none.
    pub lost_until: Sequence,
}

/// A durable position, and the part of its epoch that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurablePosition {
    /// The producer.
    pub producer: Arc<str>,
    /// The position.
    pub durable: Position,
    /// The part of this epoch that this process observed.
    pub observed: ObservedRange,
}

/// Result of advancing a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdvanceResult {
    /// No conflict.
    Normal,
    /// Another open stream of this producer id has a different epoch, and both are alive: two producers have the same id.
    DuplicateId {
        /// Whether this is the first detection for this id.
        is_first: bool,
    },
}

impl ObservedRange {
    /// The empty range after a cursor.
    pub fn after(cursor: &Cursor) -> Self {
        Self {
            epoch: cursor.epoch,
            from: cursor.sequence.next(),
            lost_in_gaps: 0,
            lost_until: Sequence(0),
        }
    }
}

impl Producer {
    /// Whether the producer must be kept while no address reads from it.
    pub(super) fn is_known(&self) -> bool {
        self.received.is_some() || self.durable.is_some() || self.streams > 0
    }

    /// Sets the cursor of the store.
    pub(super) fn load(&mut self, cursor: Cursor) {
        self.record_commit(&cursor);
        self.observed = Some(ObservedRange::after(&cursor));
        self.received = Some(cursor);
    }

    /// Records that `cursor` is durable.
    pub(super) fn record_commit(&mut self, cursor: &Cursor) {
        self.durable = Some(cursor.position());
        if let Some(received) = self.received.as_ref().filter(|it| it.epoch == cursor.epoch) {
            self.completeness.commit(cursor.sequence, received.sequence);
        }
    }

    /// Records that all cookies accepted in this epoch up to a time were received.
    pub(super) fn caught_up(&mut self, epoch: Epoch, until: UnixMicros) -> AdvanceResult {
        if self.received.as_ref().is_some_and(|it| it.epoch == epoch) {
            self.completeness.receive(until);
        }
        self.find_duplicate(epoch)
    }

    /// Called for a message of a stream that has advanced before. If the producer restarted, no message of its previous epoch
    /// follows.
    fn find_duplicate(&mut self, epoch: Epoch) -> AdvanceResult {
        let received = self.received.as_ref().map(|received| received.epoch);
        if self.streams > 1 && received != Some(epoch) {
            let is_first = !std::mem::replace(&mut self.has_duplicate, true);
            AdvanceResult::DuplicateId { is_first }
        } else {
            AdvanceResult::Normal
        }
    }

    /// Time up to which all accepted cookies are durable; `None` if no stream is open, or if the time is unknown.
    pub(super) fn complete_until(&self) -> Option<UnixMicros> {
        let received = self.received.as_ref().filter(|_| self.streams > 0)?;
        self.completeness
            .until(self.durable == Some(received.position()))
    }

    /// Opens a stream after `at` to a producer that has all cookies up to `newest`. `previous` is the received position of
    /// the previous epoch. The first stream of the new epoch returns the observed range of the previous one.
    pub(super) fn open_stream(
        &mut self,
        at: &Cursor,
        newest: Sequence,
        previous: Option<&Cursor>,
    ) -> Option<ObservedRange> {
        self.streams += 1;
        self.extend(at, newest);
        if self.observed.is_some_and(|it| it.epoch == at.epoch) {
            return None;
        }
        let observed = self.observed.replace(ObservedRange::after(at));
        let previous = previous?;
        let observed = observed.filter(|it| it.epoch == previous.epoch);
        Some(observed.unwrap_or_else(|| ObservedRange::after(previous)))
    }

    /// Closes a stream.
    pub(super) fn close_stream(&mut self, now: Instant) {
        self.closed = Some(now);
        self.streams = self.streams.saturating_sub(1);
        self.has_duplicate &= self.streams > 1;
    }

    /// Advances a stream to `cursor`, with this change number. `accepted` is the time of a chunk; `had_advanced` is true if the
    /// stream has advanced before.
    pub(super) fn advance(
        &mut self,
        cursor: &Cursor,
        accepted: Option<UnixMicros>,
        change: u64,
        had_advanced: bool,
    ) -> AdvanceResult {
        self.extend(cursor, cursor.sequence);
        self.advanced_at = change;
        let advanced = if had_advanced {
            // Another stream may have replaced the epoch that this stream has set.
            self.find_duplicate(cursor.epoch)
        } else {
            AdvanceResult::Normal
        };
        let received = self.received.get_or_insert_with(|| cursor.clone());
        if received.epoch != cursor.epoch {
            self.completeness = Completeness::default();
        }
        received.advance(cursor);
        self.completeness.receive(accepted.unwrap_or_default());
        advanced
    }

    /// Adds lost cookies of an epoch up to `last`; returns the total of the epoch.
    pub(super) fn add_lost(&mut self, epoch: Epoch, cookies: u64, last: Sequence) -> u64 {
        let Some(observed) = self.observed.as_mut().filter(|it| it.epoch == epoch) else {
            return cookies;
        };
        observed.lost_in_gaps = observed.lost_in_gaps.saturating_add(cookies);
        observed.lost_until = observed.lost_until.max(last);
        observed.lost_in_gaps
    }

    /// Subtracts recovered cookies from the lost ones of an epoch.
    pub(super) fn add_recovered(&mut self, epoch: Epoch, cookies: u64) {
        if let Some(observed) = self.observed.as_mut().filter(|it| it.epoch == epoch) {
            observed.lost_in_gaps = observed.lost_in_gaps.saturating_sub(cookies);
            if observed.lost_in_gaps == 0 {
                observed.lost_until = Sequence(0);
            }
        }
    }

    /// The durable position, if it is in the epoch that this process observes.
    pub(super) fn durable_position(&self, producer: &Arc<str>) -> Option<DurablePosition> {
        let (durable, observed) = (self.durable?, self.observed?);
        let producer = Arc::clone(producer);
        (durable.epoch == observed.epoch).then_some(DurablePosition {
            producer,
            durable,
            observed,
        })
    }

    /// Removes the durable position. Unless a stream is open, also removes and returns the received position.
    pub(super) fn forget(&mut self) -> Option<Cursor> {
        self.durable = None;
        if self.streams > 0 {
            return None;
        }
        std::mem::take(self).received
    }

    pub(super) fn status(&self, has_address: bool, set_ahead: i64) -> ProducerStatus {
        ProducerStatus {
            has_address,
            streams: self.streams,
            durable: self.durable,
            lag_cookies: self.lag(),
            skew_micros: self.offset.map(|it| it.max.saturating_add(set_ahead)),
            has_duplicate: self.has_duplicate,
        }
    }

    /// Records that the producer has `sequence` in the epoch of `from`. All cookies after `from` were requested.
    fn extend(&mut self, from: &Cursor, sequence: Sequence) {
        match &mut self.newest {
            Some(newest) if newest.epoch == from.epoch => {
                newest.sequence = newest.sequence.max(sequence);
            }
            newest => {
                *newest = Some(NewestPosition {
                    epoch: from.epoch,
                    from: from.sequence,
                    sequence,
                });
            }
        }
    }

    fn lag(&self) -> Option<u64> {
        let NewestPosition {
            epoch,
            from,
            sequence,
        } = self.newest?;
        let durable = match self.durable {
            Some(durable) if durable.epoch == epoch => durable.sequence,
            _ => from,
        };
        Some(sequence.since(durable))
    }
}
