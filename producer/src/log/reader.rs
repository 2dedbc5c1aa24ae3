//! A position in the log that moves forward: chunks, exact gaps, and word when nothing happens.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Chunk, Head, Sequence, Shared};

/// What a reader gets next. Each begins where the last ended.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// The cookies of `chunk` from sequence `first` on.
    Chunk {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// The first sequence that belongs to this delivery; the chunk's own unless the reader joins inside.
        first: Sequence,
    },
    /// These sequences will not come.
    Gap {
        /// The first missing sequence.
        first: Sequence,
        /// The last missing sequence, inclusive.
        last: Sequence,
        /// Why.
        reason: GapReason,
    },
    /// Nothing has happened for a while.
    Idle {
        /// The sequence the next delivery will begin with.
        next: Sequence,
    },
    /// Nothing will follow.
    End {
        /// The last sequence of the epoch; 0 when it had none.
        last: Sequence,
    },
}

/// Why a reader skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GapReason {
    /// The reader was further behind than its queue's bound.
    QueueBound,
    /// The log no longer holds the sequences.
    LogMovedOn,
}

/// One reader of the log; see [`Log::reader`](super::Log::reader).
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    head: watch::Receiver<Head>,
    position: Sequence,
    queue_cookies_max: u64,
    /// The bound of the queue counts from this sequence on.
    catching_up_until: Sequence,
    /// How far behind it was before the last delivery, in cookies.
    lag: u64,
    /// The beat at which something was delivered last.
    beat: u64,
}

impl Reader {
    pub(super) fn new(
        shared: Arc<Shared>,
        position: Sequence,
        queue_cookies_max: u64,
        catching_up_until: Sequence,
    ) -> Self {
        let head = shared.head.subscribe();
        let beat = head.borrow().beat;
        Self {
            shared,
            head,
            position,
            queue_cookies_max,
            catching_up_until,
            lag: 0,
            beat,
        }
    }

    /// The sequence the next delivery begins with.
    #[must_use]
    pub fn position(&self) -> Sequence {
        self.position
    }

    /// How far behind the head it was when it took the last delivery, what that brought included, in cookies.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.lag
    }

    /// Waits for the next delivery. Dropping the future loses nothing.
    ///
    /// What is behind the bound is skipped when this is called, not before: call it when the reader can
    /// take more.
    pub async fn next(&mut self) -> Delivery {
        loop {
            let head = *self.head.borrow_and_update();
            if let Some(delivery) = self.take(head) {
                return delivery;
            }
            // The sender lives in `shared`, which this reader holds.
            if self.head.changed().await.is_err() {
                return self.end();
            }
        }
    }

    fn take(&mut self, head: Head) -> Option<Delivery> {
        // A reader may begin at what is sealed and not yet told.
        self.lag = head.next.saturating_sub(self.position);
        if self.position < head.next {
            self.beat = head.beat;
            return Some(self.advance(head.next));
        }
        self.catching_up_until = 0;
        if head.closed {
            return Some(self.end());
        }
        // One beat may come right after a delivery; two mean that a whole interval went by.
        if head.beat >= self.beat + 2 {
            self.beat = head.beat - 1;
            return Some(Delivery::Idle {
                next: self.position,
            });
        }
        None
    }

    fn end(&self) -> Delivery {
        Delivery::End {
            last: self.position - 1,
        }
    }

    fn advance(&mut self, next: Sequence) -> Delivery {
        if self.lag <= self.queue_cookies_max {
            self.catching_up_until = 0;
        } else if self.position >= self.catching_up_until {
            // To where a chunk begins: a reader that stays slow still gets shared bytes.
            let least = next - self.queue_cookies_max;
            let target = self.shared.ring().boundary(least, next);
            return self.skip_to(target, GapReason::QueueBound);
        }
        let found = self.shared.ring().find(self.position).map(Arc::clone);
        let Some(chunk) = found else {
            unreachable!(
                "the ring holds everything published but what it evicted at its other end"
            );
        };
        if chunk.first() > self.position {
            return self.skip_to(chunk.first(), GapReason::LogMovedOn);
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
