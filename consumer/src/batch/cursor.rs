//! The position up to which a producer's stream has been received.

use std::{cmp::Ordering, sync::Arc};

use proto::{
    cursor::Position,
    units::{Epoch, Sequence},
};

/// Position of this consumer in the stream of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The producer.
    pub producer: Arc<str>,
    /// The epoch of `sequence`.
    pub epoch: Epoch,
    /// The newest sequence number that was received or lost.
    pub sequence: Sequence,
    /// Whether the producer has sent `Goodbye`: nothing follows in this epoch.
    pub complete: bool,
}

/// The progress of one producer in a batch.
#[derive(Debug)]
pub struct Progress {
    /// The position after the batch.
    pub cursor: Cursor,
    /// The epochs that were received up to their `Goodbye`.
    pub completed: Vec<Cursor>,
}

impl Cursor {
    /// The position; comparable only with positions of the same producer.
    pub fn position(&self) -> Position {
        let (epoch, sequence) = (self.epoch, self.sequence);
        Position { epoch, sequence }
    }

    /// Advances to `next`, a cursor of the same producer, unless `next` is behind in the same epoch. A different epoch
    /// always replaces this one.
    pub fn advance(&mut self, next: &Cursor) {
        match next.position().partial_cmp(&self.position()) {
            Some(Ordering::Less) => {}
            Some(Ordering::Equal) => self.complete |= next.complete,
            Some(Ordering::Greater) | None => *self = next.clone(),
        }
    }
}
