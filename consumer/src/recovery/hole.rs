//! One hole in the stream of a producer, and what an archive has of it. Does no I/O.

use std::{fmt, ops::RangeInclusive, sync::Arc};

use proto::{
    archive::Origin,
    units::{Epoch, Sequence, UnixMicros},
    v1::event::Event,
    wire::{ChunkRef, StreamMessage},
};

use super::{
    cut::cut,
    intervals::{Intervals, length},
};
use crate::{batch::Cursor, subscription::restarts::Restart};

/// Numbers that a stream did not deliver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// The producer.
    pub producer: Arc<str>,
    /// The epoch of the numbers.
    pub epoch: Epoch,
    /// The missing numbers. After a restart, those after the received position.
    pub range: RangeInclusive<u64>,
    /// The restart, if the producer ended the epoch.
    pub restart: Option<Restart>,
}

/// Why cookies of a hole are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossReason {
    /// The archive has later events of this epoch, or no event for some time, but not these cookies.
    NotArchived,
    /// The archive has removed them.
    Expired,
    /// They were accepted so long ago that this node may no longer know the deletions that cover them.
    TooOld,
    /// The archive could not be read in time, or too many holes were open.
    Unavailable,
}

/// Labels of the reasons, in the order of their numbers.
pub(crate) const REASONS: [&str; 4] = [
    "not_archived",
    "archive_expired",
    "too_old",
    "archive_unavailable",
];

/// What happened to cookies of a hole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cookies read from the archive.
    pub recovered: u64,
    /// Cookies that are lost, by reason.
    pub lost: [u64; REASONS.len()],
    /// Cookies that were read again.
    pub duplicates: u64,
    /// Chunks with missing numbers that were read after later ones.
    pub reordered: u64,
}

impl Hole {
    /// The numbers of a gap.
    pub fn gap(cursor: &Cursor, range: RangeInclusive<u64>) -> Self {
        Self {
            producer: Arc::clone(&cursor.producer),
            epoch: cursor.epoch,
            range,
            restart: None,
        }
    }

    /// The cookies of earlier epochs that a restarted producer will not send.
    pub fn restart(restart: Restart) -> Self {
        let rest = restart.previous.sequence.next().0..=u64::MAX;
        Self {
            restart: Some(restart.clone()),
            ..Self::gap(&restart.previous, rest)
        }
    }

    /// The number of missing cookies. After a restart it is not known; those that are found count.
    pub fn cookies(&self) -> u64 {
        match &self.restart {
            Some(_) => 0,
            None => length(&self.range),
        }
    }
}

impl Counts {
    /// Cookies of a hole that is not recovered.
    pub(super) fn unavailable(cookies: u64) -> Self {
        let mut counts = Self::default();
        counts.lost[LossReason::Unavailable as usize] = cookies;
        counts
    }

    /// Cookies that were recovered, or not for their age.
    pub fn found(&self) -> u64 {
        self.recovered + self.lost[LossReason::TooOld as usize]
    }

    /// Cookies that are lost, by the label of the reason.
    pub fn lost_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.lost)
    }

    /// Cookies that are lost, for any reason.
    pub fn lost(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Subtracts earlier counts.
    pub(super) fn subtract(&mut self, earlier: &Self) {
        self.recovered -= earlier.recovered;
        self.duplicates -= earlier.duplicates;
        self.reordered -= earlier.reordered;
        for (sum, lost) in self.lost.iter_mut().zip(earlier.lost) {
            *sum -= lost;
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.recovered += other.recovered;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        for (sum, lost) in self.lost.iter_mut().zip(other.lost) {
            *sum += lost;
        }
    }
}

/// An event that does not belong to the subject of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Foreign;

/// Numbers of one epoch while they are being recovered.
#[derive(Debug)]
pub(super) struct OpenHole {
    origin: Origin,
    /// In ascending order.
    ranges: Vec<RangeInclusive<u64>>,
    /// Whether all numbers of the ranges exist. Otherwise those that are not found do not count as lost.
    is_exact: bool,
    missing: Intervals,
    /// The events of all lower numbers were read, as far as they are archived.
    reached: u64,
    pub(super) counts: Counts,
}

impl OpenHole {
    /// All numbers of a range, of which some may not exist unless the range is exact.
    pub(super) fn new(
        producer: &str,
        epoch: Epoch,
        range: RangeInclusive<u64>,
        is_exact: bool,
    ) -> Self {
        Self {
            origin: Origin {
                producer_id: producer.to_owned(),
                epoch,
            },
            is_exact,
            missing: Intervals::new(range.clone()),
            reached: *range.start(),
            ranges: vec![range],
            counts: Counts::default(),
        }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Adds numbers after the highest one.
    pub(super) fn append(&mut self, range: RangeInclusive<u64>) {
        self.missing.append(range.clone());
        self.ranges.push(range);
    }

    /// The epoch ended with this number, or earlier.
    pub(super) fn ends_at(&mut self, last: Sequence) {
        self.missing.remove(last.next().0..=u64::MAX);
    }

    /// The first number to read.
    pub(super) fn first_missing(&self) -> Option<Sequence> {
        self.missing.first()
    }

    /// Cookies without an outcome.
    pub(super) fn missing(&self) -> u64 {
        self.missing.count()
    }

    /// Whether a number is missing before one that was found.
    pub(super) fn is_split(&self) -> bool {
        self.missing.is_split()
    }

    /// Whether the archive cannot have more of this hole: a producer archives its events in order.
    pub(super) fn is_read(&self) -> bool {
        self.missing.last().is_none_or(|last| self.reached > last.0)
    }

    /// Takes what is missing from an event of the archive.
    ///
    /// # Errors
    /// If the event is of another epoch.
    pub(super) fn apply(
        &mut self,
        event: StreamMessage,
        accepted_min: UnixMicros,
    ) -> Result<Vec<ChunkRef>, Foreign> {
        let next = next(&event);
        let mut parts = Vec::new();
        if let StreamMessage::Chunk(chunk) = event {
            let header = chunk.header();
            let (first, last) = (header.first_sequence.0, header.last_sequence().0);
            if header.epoch != self.origin.epoch {
                return Err(Foreign);
            }
            let removed = self.missing.remove(first..=last);
            if first < self.reached && !removed.is_empty() {
                self.counts.reordered += u64::from(*removed[0].start() < self.reached);
            }
            let inside = self.ranges.iter().filter_map(|range| {
                let both = first.max(*range.start())..=last.min(*range.end());
                (!both.is_empty()).then(|| length(&both))
            });
            let new: u64 = removed.iter().map(length).sum();
            self.counts.duplicates += inside.sum::<u64>() - new;
            for range in &removed {
                let (part, old) = cut(&chunk, range, accepted_min);
                self.counts.recovered += length(range) - old;
                self.counts.lost[LossReason::TooOld as usize] += old;
                parts.extend(part);
            }
        }
        self.reached = self.reached.max(next.unwrap_or_default());
        Ok(parts)
    }

    /// The archive begins with this number.
    pub(super) fn begins_at(&mut self, number: Sequence) {
        if let Some(first) = self.missing.first().filter(|first| *first < number) {
            let expired = self.missing.remove(first.0..=number.0 - 1);
            self.lose(&expired, LossReason::Expired);
        }
    }

    /// Nothing more is recovered.
    pub(super) fn give_up(&mut self, reason: LossReason) {
        let rest = self.missing.remove(0..=u64::MAX);
        self.lose(&rest, reason);
    }

    fn lose(&mut self, ranges: &[RangeInclusive<u64>], reason: LossReason) {
        if !self.is_exact {
            return;
        }
        self.counts.lost[reason as usize] += ranges.iter().map(length).sum::<u64>();
    }
}

impl fmt::Display for Hole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.range.clone().into_inner();
        write!(f, "{} epoch {}: {first} to ", self.producer, self.epoch)?;
        match &self.restart {
            Some(restart) => write!(f, "the start of epoch {}", restart.new_epoch),
            None => last.fmt(f),
        }
    }
}

/// The number that an event begins with: all earlier ones were archived before it, or never.
pub(super) fn begin(event: &StreamMessage) -> Option<Sequence> {
    match event {
        StreamMessage::Chunk(chunk) => Some(chunk.header().first_sequence),
        StreamMessage::Event(Event::Gap(gap)) => Some(Sequence(gap.first_sequence)),
        event => next(event).map(Sequence),
    }
}

/// The number after an event.
pub(super) fn next(event: &StreamMessage) -> Option<u64> {
    match event {
        StreamMessage::Chunk(chunk) => Some(chunk.header().last_sequence().next().0),
        StreamMessage::Event(Event::Gap(gap)) => Some(gap.last_sequence.saturating_add(1)),
        StreamMessage::Event(Event::Heartbeat(heartbeat)) => Some(heartbeat.next_sequence),
        StreamMessage::Event(Event::Goodbye(end)) => Some(end.final_sequence.saturating_add(1)),
        StreamMessage::Event(_) | StreamMessage::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proto::v1::{Gap, Goodbye, Heartbeat};

    use super::*;
    use crate::batch::tests::{batch, chunk};

    /// What an archive has: a chunk of numbers, or an event that states that all numbers below this one have passed.
    #[derive(Debug, Clone)]
    enum Archived {
        Chunk(u64, u64),
        Passed(u64),
    }

    fn archived() -> impl Strategy<Value = Archived> {
        prop_oneof![
            4 => (1..80_u64, 0..12_u64).prop_map(|(first, more)| Archived::Chunk(first, first + more)),
            1 => (1..90_u64).prop_map(Archived::Passed),
        ]
    }

    fn event(archived: &Archived, kind: usize) -> StreamMessage {
        match *archived {
            Archived::Chunk(first, last) => {
                let names: Vec<_> = (first..=last).map(|number| number.to_string()).collect();
                let cookies: Vec<_> = names.iter().map(|name| (&**name, 1, "b")).collect();
                StreamMessage::Chunk(chunk(first, 1, &cookies))
            }
            Archived::Passed(next_sequence) => StreamMessage::Event(match kind % 3 {
                0 => Event::Heartbeat(Heartbeat { next_sequence }),
                1 => Event::Goodbye(Goodbye {
                    final_sequence: next_sequence - 1,
                }),
                _ => Event::Gap(Gap {
                    first_sequence: next_sequence - 1,
                    last_sequence: next_sequence - 1,
                    reason: 0,
                }),
            }),
        }
    }

    proptest! {
        /// The model is one set of numbers, and knows neither ranges nor order.
        #[test]
        fn each_missing_number_is_recovered_once_or_lost(
            events in prop::collection::vec(archived(), 0..30),
            first in 1..60_u64,
            more in 0..30_u64,
        ) {
            let range = first..=first + more;
            let mut hole = OpenHole::new("p", Epoch(1), range.clone(), true);
            let (mut present, mut passed, mut repeated) = (BTreeSet::new(), 0, 0);
            for (kind, archived) in events.iter().enumerate() {
                let parts = hole.apply(event(archived, kind), UnixMicros(0)).unwrap();
                let batch = batch(&parts);
                let read = batch.cookies().map(|it| String::from_utf8(it.user_id.to_vec()).unwrap());
                let read: Vec<u64> = read.map(|it| it.parse().unwrap()).collect();
                let expected = match *archived {
                    Archived::Chunk(first, last) => {
                        passed = passed.max(last + 1);
                        let (new, old): (Vec<_>, Vec<_>) = (first..=last)
                            .filter(|number| range.contains(number))
                            .partition(|number| present.insert(*number));
                        repeated += old.len() as u64;
                        new
                    }
                    Archived::Passed(next) => {
                        passed = passed.max(next);
                        Vec::new()
                    }
                };
                prop_assert_eq!(read, expected);
                prop_assert_eq!(hole.counts.recovered, present.len() as u64);
                prop_assert_eq!(hole.counts.duplicates, repeated);
                let rest: Vec<u64> = range.clone().filter(|it| !present.contains(it)).collect();
                prop_assert_eq!(hole.missing(), rest.len() as u64);
                prop_assert_eq!(hole.first_missing().map(|it| it.0), rest.first().copied());
                prop_assert_eq!(hole.is_read(), rest.last().is_none_or(|last| *last < passed));
            }
            let rest = hole.missing();
            hole.begins_at(Sequence(first + more / 2));
            hole.give_up(LossReason::NotArchived);
            prop_assert_eq!((hole.counts.lost(), hole.missing()), (rest, 0));
        }
    }
}
