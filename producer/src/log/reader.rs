//! A reader of the log: delivers chunks, the exact ranges of skipped cookies (gaps), and heartbeats while idle.

mod drop_oldest;

use std::sync::Arc;

use bytes::Bytes;
use proto::{
    units::Sequence,
    v1::{self, event::Event},
    wire,
};
use tokio::sync::watch;

pub use self::drop_oldest::GapReason;
use super::{Chunk, Head, Log, LogShared};

/// A delivery to a reader. Each begins where the previous one ended.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// The cookies of `chunk` from sequence number `first` on.
    Chunk {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// The first sequence number of this delivery: the chunk's, unless the reader begins inside the chunk.
        first: Sequence,
    },
    /// The reader has lost these cookies.
    Gap {
        /// The first missing sequence number.
        first: Sequence,
        /// The last missing sequence number, inclusive.
        last: Sequence,
        /// The reason for the loss.
        reason: GapReason,
    },
    /// No chunk was sealed for [`Config::idle_after`](super::Config::idle_after).
    Idle {
        /// The first sequence number of the next delivery.
        next: Sequence,
    },
    /// The log is closed.
    End {
        /// The last sequence number of the epoch; 0 without cookies.
        last: Sequence,
    },
}

impl Delivery {
    /// The [`v1::Event`] as a complete gRPC message with its length prefix: the shared bytes of the chunk, unless the delivery begins
    /// inside the chunk.
    pub fn event(&self) -> Bytes {
        let event = match *self {
            Self::Chunk { ref chunk, first } => return chunk.wire_from(first),
            Self::Gap {
                first,
                last,
                reason,
            } => Event::Gap(v1::Gap {
                first_sequence: first.0,
                last_sequence: last.0,
                reason: match reason {
                    GapReason::LagLimit => v1::GapReason::LagLimit,
                    GapReason::Evicted => v1::GapReason::Evicted,
                }
                .into(),
            }),
            Self::Idle { next } => Event::Heartbeat(v1::Heartbeat {
                next_sequence: next.0,
            }),
            Self::End { last } => Event::Goodbye(v1::Goodbye {
                final_sequence: last.0,
            }),
        };
        wire::encode_event(event)
    }
}

/// One reader of the log; see [`Log::reader`](super::Log::reader).
#[derive(Debug)]
pub struct Reader {
    shared: Arc<LogShared>,
    head: watch::Receiver<Head>,
    position: Sequence,
    queue_cookies_max: u64,
    /// The maximum lag applies from this sequence number on.
    catching_up_until: Sequence,
    /// Lag in cookies before the last delivery.
    lag: u64,
    /// [`Head::beat`] at the last delivery.
    beat: u64,
}

impl Log {
    /// A reader from `position` on, which skips forward when its lag exceeds `queue_cookies_max`. This maximum applies from
    /// sequence number `until` on, or once the lag is within it.
    pub fn reader(&self, position: Sequence, queue_cookies_max: u64, until: Sequence) -> Reader {
        let head = self.shared.head.subscribe();
        let beat = head.borrow().beat;
        Reader {
            shared: Arc::clone(&self.shared),
            head,
            position,
            queue_cookies_max,
            catching_up_until: until,
            lag: 0,
            beat,
        }
    }
}

impl Reader {
    /// The first sequence number of the next delivery.
    pub fn position(&self) -> Sequence {
        self.position
    }

    /// Lag in cookies just before the last delivery.
    pub fn lag(&self) -> u64 {
        self.lag
    }

    /// Waits for the next delivery. Cancel-safe.
    ///
    /// Cookies beyond the maximum lag are skipped when this is called, so call it only when the delivery can be processed.
    pub async fn next(&mut self) -> Delivery {
        loop {
            if let Some(delivery) = self.try_next() {
                return delivery;
            }
            // The sender lives in `shared`, which this reader holds.
            if self.head.changed().await.is_err() {
                return self.end();
            }
        }
    }

    /// The next delivery, if it is ready.
    pub fn try_next(&mut self) -> Option<Delivery> {
        let head = *self.head.borrow_and_update();
        // A reader may begin at a cookie that is sealed but not published yet.
        self.lag = head.next.since(self.position);
        if self.position < head.next {
            self.beat = head.beat;
            return Some(self.advance(head.next));
        }
        self.catching_up_until = Sequence(0);
        if head.closed {
            return Some(self.end());
        }
        // One beat may follow a delivery immediately; after two, a full interval has passed.
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
