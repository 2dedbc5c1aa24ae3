//! Counters of subscribers. Each counter is written by a single task without a lock, and is read and reported by
//! another task.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use proto::wire::ChunkRef;
use serde::{Deserialize, Serialize};

use crate::message::{LANES, split_lane, walk};

/// Counters of one subscriber.
#[derive(Debug, Default)]
pub(crate) struct Count {
    received: AtomicU64,
    repeated: AtomicU64,
    reported_lost: AtomicU64,
    disconnects: AtomicU64,
    unreadable: AtomicU64,
    /// Next sequence number of each lane.
    next: [AtomicU64; LANES],
}

impl Count {
    /// Counts a message of another broker.
    pub(crate) fn message(&self, message: Bytes) {
        let walked = ChunkRef::decode(message)
            .ok()
            .and_then(|chunk| walk(&chunk));
        match walked.map(|(sequence, count)| (split_lane(sequence), count)) {
            Some(((lane, first), count)) if lane < LANES => self.walked(lane, first, count),
            _ => self.unreadable(),
        }
    }

    /// Counts a chunk of the producer, which numbers all cookies in one sequence.
    pub(crate) fn chunk(&self, chunk: &ChunkRef) {
        match walk(chunk) {
            Some((first, count)) => self.walked(0, first, count),
            None => self.unreadable(),
        }
    }

    /// Counts a cookie without a sequence number.
    pub(crate) fn cookie(&self) {
        self.received.fetch_add(1, Relaxed);
    }

    /// Counts cookies that the producer reported as lost.
    pub(crate) fn reported_lost(&self, count: u64) {
        self.reported_lost.fetch_add(count, Relaxed);
    }

    /// Counts a closed connection.
    pub(crate) fn disconnected(&self) {
        self.disconnects.fetch_add(1, Relaxed);
    }

    /// Counts a message that cannot be decoded.
    pub(crate) fn unreadable(&self) {
        self.unreadable.fetch_add(1, Relaxed);
    }

    fn walked(&self, lane: usize, first: u64, count: u32) {
        self.received.fetch_add(u64::from(count), Relaxed);
        let end = first + u64::from(count);
        let next = self.next[lane].fetch_max(end, Relaxed);
        self.repeated
            .fetch_add(next.min(end).saturating_sub(first), Relaxed);
    }
}

/// Totals of all subscribers of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Cookies, including repeated ones.
    pub(crate) received: u64,
    /// Cookies received more than once; 0 if they have no sequence numbers.
    pub(crate) repeated: u64,
    /// Cookies that the server reported as lost.
    pub(crate) reported_lost: u64,
    /// Closed connections.
    pub(crate) disconnects: u64,
    /// Messages that could not be decoded.
    pub(crate) unreadable: u64,
}

impl Counts {
    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Count>) -> Self {
        all.fold(Self::default(), |sum, count| Self {
            received: sum.received + count.received.load(Relaxed),
            repeated: sum.repeated + count.repeated.load(Relaxed),
            reported_lost: sum.reported_lost + count.reported_lost.load(Relaxed),
            disconnects: sum.disconnects + count.disconnects.load(Relaxed),
            unreadable: sum.unreadable + count.unreadable.load(Relaxed),
        })
    }

    /// Distinct cookies; all cookies if they have no sequence numbers.
    pub(crate) fn delivered(&self) -> u64 {
        self.received.saturating_sub(self.repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Messages;

    #[test]
    fn repeats_are_counted_in_each_lane() {
        let lane = |lane| {
            let mut messages = Messages::new(10, lane);
            [messages.make(), messages.make(), messages.make()]
        };
        let ([a, b, c], [x, y, _], [stray, ..]) = (lane(0), lane(3), lane(LANES as u64));
        let count = Count::default();
        for message in [&x, &a, &a, &y, &c, &b, &stray] {
            count.message(message.clone());
        }
        count.reported_lost(7);
        count.disconnected();
        let counts = Counts::sum([&count].into_iter());
        // A late message counts as repeated: these servers preserve the order within a connection.
        assert_eq!((counts.received, counts.repeated), (60, 20));
        assert_eq!(
            (counts.reported_lost, counts.disconnects, counts.unreadable),
            (7, 1, 1)
        );
        assert_eq!(counts.delivered(), 40);
    }
}
