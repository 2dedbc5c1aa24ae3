//! How cursors of one producer compare.

use std::cmp::Ordering;

/// Where a reader stands on a producer: the newest sequence that it has of an epoch, 0 when it has none.
///
/// Ordered within an epoch, by sequence. Epochs have no order, so positions of two epochs do not compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// The epoch.
    pub epoch: u64,
    /// The newest sequence that need not come again.
    pub sequence: u64,
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
    fn positions_compare_within_an_epoch_and_not_beyond() {
        let at = |epoch, sequence| Position { epoch, sequence };
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
