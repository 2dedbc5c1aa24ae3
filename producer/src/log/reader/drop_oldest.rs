//! When a slow reader loses its oldest cookies: further behind than its queue's bound, or than the ring goes back.

use std::sync::Arc;

use super::{Delivery, Reader};
use crate::log::Sequence;

/// Why a reader skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapReason {
    /// The reader was further behind than its queue's bound.
    LagLimit,
    /// The log no longer holds the sequences.
    Evicted,
}

impl Reader {
    /// What a reader gets that is behind `next`.
    pub(super) fn advance(&mut self, next: Sequence) -> Delivery {
        if self.lag <= self.queue_cookies_max {
            self.catching_up_until = 0;
        } else if self.position >= self.catching_up_until {
            // Skip to the beginning of a chunk, so that a reader that stays slow still gets shared bytes.
            let least = next - self.queue_cookies_max;
            let target = self.shared.ring().boundary(least, next);
            return self.skip_to(target, GapReason::LagLimit);
        }
        let found = self.shared.ring().find(self.position).map(Arc::clone);
        let Some(chunk) = found else {
            unreachable!(
                "the ring holds everything published but what it evicted at its other end"
            );
        };
        if chunk.first() > self.position {
            return self.skip_to(chunk.first(), GapReason::Evicted);
        }
        let first = self.position;
        self.position = chunk.last() + 1;
        Delivery::Chunk { chunk, first }
    }

    fn skip_to(&mut self, position: Sequence, reason: GapReason) -> Delivery {
        let first = self.position;
        self.position = position;
        Delivery::Gap {
            first,
            last: position - 1,
            reason,
        }
    }
}
