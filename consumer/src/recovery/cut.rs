//! The part of an archived chunk that this node recovers. Does no I/O.

use std::ops::RangeInclusive;

use bytes::Bytes;
use proto::{
    units::{Sequence, UnixMicros},
    wire::{
        self, ChunkHeader, ChunkRef, FRAME_PREFIX_BYTES, HEADROOM_BYTES, Record, StreamMessage,
    },
};

use super::intervals::length;

/// The records of these numbers, except cookies that were accepted before `accepted_min`; also returns the number of the latter.
/// Deletions are never too old. `None` if nothing remains.
///
/// A malformed record keeps its number, so that the batch counts it. Without cookies that were too old, sequence numbers do not change.
pub(super) fn cut(
    chunk: &ChunkRef,
    range: &RangeInclusive<u64>,
    accepted_min: UnixMicros,
) -> (Option<ChunkRef>, u64) {
    let header = *chunk.header();
    let first = header.first_sequence.0;
    let numbers = first..=header.last_sequence().0;
    let is_old = |record: &Record<'_>| matches!(record, Record::Set(cookie) if cookie.accepted(header.accepted) < accepted_min);
    let has_old = chunk.records().flatten().any(|record| is_old(&record));
    if *range == numbers && !has_old {
        return (Some(chunk.clone()), 0);
    }
    let (mut buffer, mut old) = (vec![0; HEADROOM_BYTES], 0);
    for (number, record) in numbers.zip(chunk.records()) {
        match record {
            Ok(record) if range.contains(&number) && is_old(&record) => old += 1,
            Ok(record) if range.contains(&number) => wire::put_record(&mut buffer, &record),
            _ => {}
        }
    }
    let Ok(count @ 1..) = u32::try_from(length(range) - old) else {
        return (None, old);
    };
    let header = ChunkHeader {
        first_sequence: Sequence(*range.start()),
        count,
        ..header
    };
    let at = wire::seal(&mut buffer, &header) + FRAME_PREFIX_BYTES;
    match StreamMessage::decode(Bytes::from(buffer).slice(at..)) {
        Ok(StreamMessage::Chunk(chunk)) => (Some(chunk), old),
        other => unreachable!("a chunk was encoded: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::{aged_chunk, batch};

    /// A chunk of numbers 10 to 13, accepted at 100, 90 and 60 µs, and a deletion at 50 µs.
    fn chunk() -> ChunkRef {
        let records = [
            (("a", 1, "x"), 0),
            (("b", 1, "x"), 10),
            (("c", 1, "x"), 40),
            (("d", 1, ""), 50),
        ];
        aged_chunk(10, 100, &records)
    }

    #[track_caller]
    fn check(range: RangeInclusive<u64>, accepted_min: u64, users: &str, deletions: u64, old: u64) {
        let (cut, found) = cut(&chunk(), &range, UnixMicros(accepted_min));
        let batch = batch(&cut.into_iter().collect::<Vec<_>>());
        let stored = batch.cookies().map(|it| it.user_id[0] as char);
        let times = batch.cookies().map(|it| it.accepted.0);
        assert!(times.eq(chunk_times(users)), "{users}");
        assert_eq!(stored.collect::<String>(), users);
        assert_eq!((batch.counts().deletions, found), (deletions, old));
        assert_eq!(batch.counts().malformed, 0);
    }

    fn chunk_times(users: &str) -> impl Iterator<Item = u64> {
        let time = |user| match user {
            'a' => 100,
            'b' => 90,
            _ => 60,
        };
        users.chars().map(time)
    }

    #[test]
    fn part_has_the_numbers_of_the_range_that_are_not_too_old() {
        check(10..=13, 0, "abc", 1, 0);
        check(10..=13, 90, "ab", 1, 1);
        check(11..=12, 0, "bc", 0, 0);
        check(12..=13, 61, "", 1, 1);
        check(12..=12, 61, "", 0, 1);
        check(10..=10, 101, "", 0, 1);
    }

    #[test]
    fn records_that_a_chunk_lacks_are_malformed() {
        let whole = chunk();
        let header = ChunkHeader {
            count: 1 << 20,
            ..*whole.header()
        };
        let mut buffer = vec![0; HEADROOM_BYTES];
        for record in whole.records() {
            wire::put_record(&mut buffer, &record.unwrap());
        }
        let at = wire::seal(&mut buffer, &header) + FRAME_PREFIX_BYTES;
        let decoded = StreamMessage::decode(Bytes::from(buffer).slice(at..)).unwrap();
        let StreamMessage::Chunk(long) = decoded else {
            panic!("{decoded:?}")
        };
        let (part, old) = cut(&long, &(12..=20), UnixMicros(61));
        let counts = batch(&[part.unwrap()]).counts();
        assert_eq!((counts.received, counts.malformed, old), (8, 7, 1));
    }
}
