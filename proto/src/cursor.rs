//! Order of cursors of one producer.

use std::cmp::Ordering;

use crate::units::{Epoch, Sequence};

/// Position of a client on a producer: the newest sequence number that it has of an epoch, or 0.
///
/// Positions of one epoch are ordered by sequence number. Positions of different epochs have no order.
///
/// ```
/// use cookiesync_proto::{cursor::Position, units::{Epoch, Sequence}};
///
/// let old = Position { epoch: Epoch(7), sequence: Sequence(100) };
/// let new = Position { sequence: Sequence(101), ..old };
/// let other_epoch = Position { epoch: Epoch(8), ..old };
/// assert!(new > old);
/// assert_eq!(new.partial_cmp(&other_epoch), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// The epoch.
    pub epoch: Epoch,
    /// The newest sequence number that need not be resent.
    pub sequence: Sequence,
}

impl PartialOrd for Position {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.epoch == other.epoch).then(|| self.sequence.cmp(&other.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_compare_only_within_an_epoch() {
        let at = |epoch, sequence| Position {
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
        };
        for (one, other, expected) in [
            (at(1, 5), at(1, 4), Some(Ordering::Greater)),
            (at(1, 5), at(1, 5), Some(Ordering::Equal)),
            (at(1, 0), at(1, 5), Some(Ordering::Less)),
            (at(2, 5), at(1, 5), None),
            (at(1, 9), at(2, 1), None),
        ] {
            assert_eq!(one.partial_cmp(&other), expected, "{one:?} {other:?}");
        }
    }
}
