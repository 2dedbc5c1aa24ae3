//! Who decides which cookies become part of a batch.

use super::{BatchCookie, BatchId};

/// What is to become of a cookie before it is part of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It need not be written: it repeats what is stored.
    LeaveOut,
    /// It need not be written: it is older than what is stored, or than a repeat of that.
    Stale,
    /// Its DSP has no place in the store.
    Refuse,
    /// It is to be written.
    Take {
        /// Whether the store is known to have had a cookie of its pair.
        is_known: bool,
    },
}

/// What a judge wants to find again beside a cookie.
pub type Mark = [u64; 2];

/// Decides which cookies become part of a batch. Asked chunk by chunk, so that it can look up many at once.
pub trait Judge {
    /// What it will want to know of a cookie again.
    fn mark(&self, cookie: &BatchCookie<'_>) -> Mark;

    /// Announces whose verdicts will be asked for, in this order.
    fn announce(&mut self, marks: &[Mark]);

    /// What is to become of a cookie that would be part of this batch.
    fn verdict(&mut self, cookie: &BatchCookie<'_>, mark: Mark, batch: BatchId) -> Verdict;
}

/// Takes every cookie, and knows nothing of any.
#[derive(Debug, Clone, Copy)]
pub struct TakeAll;

impl Judge for TakeAll {
    fn mark(&self, _: &BatchCookie<'_>) -> Mark {
        [0; 2]
    }

    fn announce(&mut self, _: &[Mark]) {}

    fn verdict(&mut self, _: &BatchCookie<'_>, _: Mark, _: BatchId) -> Verdict {
        Verdict::Take { is_known: false }
    }
}
