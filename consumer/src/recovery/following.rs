//! Producers that have been absent for a while: the archive may have cookies that they accepted, and that this node can read nowhere else.

use std::time::Duration;

use super::{hole::OpenHole, reader::Reader};
use crate::{batch::Cursor, producers::Producers};

/// Time without a stream after which a producer is absent.
const ABSENT_AFTER: Duration = Duration::from_secs(60);

/// Maximum number of absent producers that are followed: those that were received last.
const FOLLOWING_MAX: usize = 16;

/// An absent producer.
#[derive(Debug)]
pub(super) struct Following {
    /// The position up to which its cookies were passed to the collector.
    pub(super) cursor: Cursor,
    pub(super) reader: Reader,
    /// Whether the archive lacks the next cookies. The producer reports the gap when it returns.
    pub(super) is_stuck: bool,
}

impl Following {
    fn new(cursor: Cursor) -> Self {
        let rest = cursor.sequence.next().0..=u64::MAX;
        let hole = OpenHole::new(&cursor.producer, cursor.epoch, rest, false);
        Self {
            cursor,
            reader: Reader::new(hole),
            is_stuck: false,
        }
    }
}

/// Adds the producers that have become absent, and removes those that have returned.
pub(super) fn update(following: &mut Vec<Following>, producers: &Producers) {
    let mut absent = producers.absent(ABSENT_AFTER);
    absent.truncate(FOLLOWING_MAX);
    // The received position may be behind, because the collector advances it.
    let is_same = |a: &Cursor, b: &Cursor| (&a.producer, a.epoch) == (&b.producer, b.epoch);
    following.retain(|it| absent.iter().any(|cursor| is_same(cursor, &it.cursor)));
    absent.retain(|cursor| !following.iter().any(|it| is_same(cursor, &it.cursor)));
    following.extend(absent.into_iter().map(Following::new));
}
