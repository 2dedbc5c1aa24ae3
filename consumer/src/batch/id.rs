//! Batch ids.

/// Number of a batch, in the order of collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchId(pub u64);

impl BatchId {
    /// The number of the next batch.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
