//! Skips the oldest cookies of a slow reader, whose lag exceeds the maximum or whose position was evicted.

use std::sync::Arc;

use proto::units::Sequence;

use super::{Delivery, Reader};

/// Why a reader skips cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapReason {
    /// The reader exceeded its maximum lag.
    LagLimit,
    /// The log has evicted the cookies.
    Evicted,
}

impl Reader {
    /// The next delivery of a reader whose position is before `next`.
    pub(super) fn advance(&mut self, next: Sequence) -> Delivery {
        if self.lag <= self.queue_cookies_max {
            self.catching_up_until = Sequence(0);
        } else if self.position >= self.catching_up_until {
            // Skip to the start of a chunk, so that the reader gets shared bytes.
            let min = next - self.queue_cookies_max;
            let target = self.shared.ring().boundary(min, next);
            return self.skip_to(target, GapReason::LagLimit);
        }
        let found = self.shared.ring().find(self.position).map(Arc::clone);
        let Some(chunk) = found else {
            unreachable!("the ring contains all published cookies that it has not evicted");
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
