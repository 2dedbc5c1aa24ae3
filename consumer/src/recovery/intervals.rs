//! A set of sequence numbers, as disjoint ranges. Does no I/O.

use std::ops::RangeInclusive;

use proto::units::Sequence;

/// Number of ranges above which none is split: a writer that archives every other number must not use unbounded memory.
const RANGES_MAX: usize = 1024;

/// The missing numbers of a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Intervals {
    /// In ascending order, without overlaps.
    ranges: Vec<RangeInclusive<u64>>,
}

impl Intervals {
    /// All numbers of a range.
    pub(super) fn new(range: RangeInclusive<u64>) -> Self {
        Self {
            ranges: vec![range],
        }
    }

    /// The lowest number.
    pub(super) fn first(&self) -> Option<Sequence> {
        self.ranges.first().map(|range| Sequence(*range.start()))
    }

    /// The highest number.
    pub(super) fn last(&self) -> Option<Sequence> {
        self.ranges.last().map(|range| Sequence(*range.end()))
    }

    /// Whether a number between two others was removed.
    pub(super) fn is_split(&self) -> bool {
        self.ranges.len() > 1
    }

    /// How many numbers there are, at most 2^64 − 1.
    pub(super) fn count(&self) -> u64 {
        self.ranges.iter().map(length).fold(0, u64::saturating_add)
    }

    /// Adds a range after the highest number.
    pub(super) fn append(&mut self, range: RangeInclusive<u64>) {
        self.ranges.push(range);
    }

    /// Removes the numbers of a range; returns those that were in the set. Does not split one of too many ranges.
    pub(super) fn remove(&mut self, range: RangeInclusive<u64>) -> Vec<RangeInclusive<u64>> {
        let (first, last) = range.into_inner();
        let begin = self.ranges.partition_point(|it| *it.end() < first);
        let end = self.ranges.partition_point(|it| *it.start() <= last);
        if begin >= end {
            return Vec::new();
        }
        let (outer_first, outer_last) = (*self.ranges[begin].start(), *self.ranges[end - 1].end());
        let before = (outer_first < first).then(|| outer_first..=first - 1);
        let after = (last < outer_last).then(|| last + 1..=outer_last);
        let splits = end - begin == 1 && before.is_some() && after.is_some();
        if splits && self.ranges.len() >= RANGES_MAX {
            return Vec::new();
        }
        let remaining = before.into_iter().chain(after);
        let removed = self.ranges.splice(begin..end, remaining);
        let clamp = |it: RangeInclusive<u64>| first.max(*it.start())..=last.min(*it.end());
        removed.map(clamp).collect()
    }
}

/// How many numbers a range has, at most 2^64 − 1.
pub(super) fn length(range: &RangeInclusive<u64>) -> u64 {
    (range.end() - range.start()).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_the_numbers_of_a_set(
            first in 1..50_u64,
            size in 1..200_u64,
            removed in prop::collection::vec((0..260_u64, 0..40_u64), 0..40),
        ) {
            let mut ranges = Intervals::new(first..=first + size - 1);
            let mut model: BTreeSet<u64> = (first..first + size).collect();
            for (at, more) in removed {
                let expected: Vec<u64> = (at..=at + more).filter(|it| model.remove(it)).collect();
                let parts = ranges.remove(at..=at + more);
                prop_assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), expected);
                prop_assert_eq!(ranges.count(), model.len() as u64);
                prop_assert_eq!(ranges.first().map(|it| it.0), model.first().copied());
                prop_assert_eq!(ranges.last().map(|it| it.0), model.last().copied());
                let all: Vec<u64> = ranges.ranges.iter().cloned().flatten().collect();
                prop_assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn number_of_ranges_is_bounded() {
        let mut ranges = Intervals::new(0..=u64::MAX);
        assert_eq!(ranges.count(), u64::MAX);
        let removed = (1..10_000).filter(|it| !ranges.remove(2 * it..=2 * it).is_empty());
        assert_eq!(removed.count(), RANGES_MAX - 1);
        assert_eq!(ranges.ranges.len(), RANGES_MAX);
        assert_eq!(ranges.remove(0..=u64::MAX).len(), RANGES_MAX);
        assert_eq!((ranges.first(), ranges.count()), (None, 0));
    }
}
