//! How far a producer was read.

use std::{cmp::Ordering, sync::Arc};

use proto::cursor::Position;

/// Where this consumer stands on one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The producer.
    pub producer: Arc<str>,
    /// The epoch of the producer that the sequence belongs to.
    pub epoch: u64,
    /// The newest sequence that need not come again.
    pub sequence: u64,
    /// Whether the producer said that nothing follows in this epoch.
    pub complete: bool,
}

impl Cursor {
    /// Where it stands, to be compared with others of its producer.
    #[must_use]
    pub fn position(&self) -> Position {
        let (epoch, sequence) = (self.epoch, self.sequence);
        Position { epoch, sequence }
    }

    /// Moves on to `next`, of the same producer, unless that is behind in the same epoch. Another epoch always replaces
    /// this one.
    pub fn advance(&mut self, next: &Cursor) {
        match next.position().partial_cmp(&self.position()) {
            Some(Ordering::Less) => {}
            Some(Ordering::Equal) => self.complete |= next.complete,
            Some(Ordering::Greater) | None => *self = next.clone(),
        }
    }
}
