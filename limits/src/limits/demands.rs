//! The demands of one call, merged by limit and key, on the stack.

use crate::decision::LimitId;

/// All requests of a call under one limit and key.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergedDemand {
    pub(super) limit: LimitId,
    pub(super) requests: u64,
    /// Index of the key's entry; `None` for a new key.
    pub(super) entry: Option<u32>,
    /// Index of the first demand with this key.
    pub(super) demand: usize,
}

/// The merged demands of a call.
pub(super) struct MergedDemands<const MAX: usize> {
    pub(super) all: [MergedDemand; MAX],
    pub(super) length: usize,
}

impl<const MAX: usize> MergedDemands<MAX> {
    pub(super) fn all(&self) -> &[MergedDemand] {
        &self.all[..self.length]
    }
}
