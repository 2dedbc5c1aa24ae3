//! What one call concerns: an entry for each limit and key, without an allocation.

use crate::decision::LimitId;

/// One entry that a call concerns, or would.
#[derive(Debug, Clone, Copy)]
pub(super) struct Concern {
    pub(super) limit: LimitId,
    pub(super) requests: u64,
    /// Where its state is; none of a key that is not known.
    pub(super) entry: Option<u32>,
    /// The demand whose key it is.
    pub(super) demand: usize,
}

/// The concerns of a call, without an allocation.
pub(super) struct Concerns<const MAX: usize> {
    pub(super) all: [Concern; MAX],
    pub(super) length: usize,
}

impl<const MAX: usize> Concerns<MAX> {
    pub(super) fn all(&self) -> &[Concern] {
        &self.all[..self.length]
    }

    pub(super) fn all_mut(&mut self) -> &mut [Concern] {
        &mut self.all[..self.length]
    }
}
