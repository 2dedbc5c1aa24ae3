//! How far a producer was read.

use std::sync::Arc;

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
    /// Moves on to `next`, of the same producer, unless that is behind in the same epoch.
    ///
    /// Epochs have no order: another epoch always replaces this one.
    pub fn advance(&mut self, next: &Cursor) {
        if self.epoch != next.epoch || self.sequence < next.sequence {
            *self = next.clone();
        } else if self.sequence == next.sequence {
            self.complete |= next.complete;
        }
    }
}
