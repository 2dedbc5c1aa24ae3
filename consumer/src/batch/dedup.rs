//! The filter that decides which cookies are added to a batch.

use super::{BatchCookie, BatchId};
use crate::deletions::Deletion;

/// Decision on a cookie that would be added to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupDecision {
    /// Skip it: it is a duplicate of the stored one.
    Suppress,
    /// Skip it: it is older than the stored one, or than a suppressed duplicate of the stored one.
    Stale,
    /// Reject it: its DSP is not accepted.
    NoDspSlot,
    /// Reject it: it has expired.
    Expired,
    /// Skip it: a deletion covers it.
    Deleted,
    /// Reject it: another node has sent an impossible time.
    InvalidTime,
    /// Write it.
    Write {
        /// Whether the store probably has a cookie of its pair.
        is_known: bool,
    },
}

/// Two hashes of a cookie: that of its pair, and that of its pair with the buyer uid.
pub type Fingerprint = [u64; 2];

/// Decides which cookies are added to a batch, chunk by chunk to allow prefetching.
pub trait DedupFilter {
    /// The fingerprint of a cookie, for [`decide`](Self::decide).
    fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint;

    /// Prefetches the entries of these fingerprints. Their decisions follow in this order.
    fn prefetch(&mut self, fingerprints: &[Fingerprint]);

    /// Decides on a cookie that would be added to this batch, and may increase its acceptance time.
    fn decide(
        &mut self,
        cookie: &mut BatchCookie<'_>,
        fingerprint: Fingerprint,
        batch: BatchId,
    ) -> DedupDecision;

    /// Records a deletion, so that later arrivals are covered too, and may increase its time.
    fn delete(&mut self, _deletion: &mut Deletion) {}
}

/// Accepts every cookie.
#[derive(Debug, Clone, Copy)]
pub struct AcceptAll;

impl DedupFilter for AcceptAll {
    fn fingerprint(&self, _: &BatchCookie<'_>) -> Fingerprint {
        [0; 2]
    }

    fn prefetch(&mut self, _: &[Fingerprint]) {}

    fn decide(&mut self, _: &mut BatchCookie<'_>, _: Fingerprint, _: BatchId) -> DedupDecision {
        DedupDecision::Write { is_known: false }
    }
}
