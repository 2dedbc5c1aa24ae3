//! Which batch.

/// Numbers batches in the order in which they are collected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchId(pub u64);

impl BatchId {
    /// That of the batch that is collected after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
