//! The filter that decides which cookies become part of a batch.

use super::{BatchCookie, BatchId};

/// What is to become of a cookie before it is part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DedupDecision {
    /// It need not be written: it repeats what is stored.
    Suppress,
    /// It need not be written: it is older than what is stored, or than a repeat of that.
    Stale,
    /// Its DSP has no slot in the store.
    NoDspSlot,
    /// Its time to live was over when it came.
    Expired,
    /// It is to be written.
    Write {
        /// Whether the store is known to have had a cookie of its pair.
        is_known: bool,
    },
}

/// A hash of a cookie's pair and one of its value, kept beside it.
pub type Fingerprint = [u64; 2];

/// Decides which cookies become part of a batch. Asked chunk by chunk, so that it can look up many at once.
pub trait DedupFilter {
    /// The fingerprint of a cookie, which the filter is asked with later.
    fn fingerprint(&self, cookie: &BatchCookie<'_>) -> Fingerprint;

    /// Brings what is known of these into the processor's cache: their verdicts are asked for next, in this order.
    fn prefetch(&mut self, fingerprints: &[Fingerprint]);

    /// What is to become of a cookie that would be part of this batch.
    fn decide(
        &mut self,
        cookie: &BatchCookie<'_>,
        fingerprint: Fingerprint,
        batch: BatchId,
    ) -> DedupDecision;
}

/// Takes every cookie, and knows nothing of any.
#[derive(Debug, Clone, Copy)]
pub struct AcceptAll;

impl DedupFilter for AcceptAll {
    fn fingerprint(&self, _: &BatchCookie<'_>) -> Fingerprint {
        [0; 2]
    }

    fn prefetch(&mut self, _: &[Fingerprint]) {}

    fn decide(&mut self, _: &BatchCookie<'_>, _: Fingerprint, _: BatchId) -> DedupDecision {
        DedupDecision::Write { is_known: false }
    }
}
