//! A position in the log that moves forward: chunks, exact gaps, and heartbeats when nothing happens.

mod drop_oldest;

use std::sync::Arc;

use tokio::sync::watch;

pub use self::drop_oldest::GapReason;
use super::{Chunk, Head, Sequence, Shared};

/// What a reader gets next. Each begins where the last ended.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// The cookies of `chunk` from sequence `first` on.
    Chunk {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// The first sequence that belongs to this delivery; that of the chunk unless the reader begins inside it.
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
    /// Nothing was sealed for a while.
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

/// One reader of the log; see [`Log::reader`](super::Log::reader).
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared>,
    head: watch::Receiver<Head>,
    position: Sequence,
    queue_cookies_max: u64,
    /// The bound of the queue applies from this sequence on.
    catching_up_until: Sequence,
    /// How many cookies it was behind before the last delivery.
    lag: u64,
    /// The beat of the last delivery.
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

    /// How many cookies it was behind the head just before its last delivery.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.lag
    }

    /// Waits for the next delivery. Dropping the future loses nothing.
    ///
    /// Cookies beyond the bound are skipped when this is called, not before: call it when the reader can take more.
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
        // A reader may begin at what is sealed but not published yet.
        self.lag = head.next.saturating_sub(self.position);
        if self.position < head.next {
            self.beat = head.beat;
            return Some(self.advance(head.next));
        }
        self.catching_up_until = 0;
        if head.closed {
            return Some(self.end());
        }
        // One beat may come right after a delivery; two mean that a whole interval has passed.
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
}
