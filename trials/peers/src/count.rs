//! What subscribers count: each by its one task, without a lock; read by the task that reports it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use proto::wire::ChunkRef;
use serde::{Deserialize, Serialize};

use crate::message::{LANES, split_lane, walk};

/// The counts of one subscriber.
#[derive(Debug, Default)]
pub(crate) struct Count {
    received: AtomicU64,
    repeated: AtomicU64,
    told_lost: AtomicU64,
    disconnects: AtomicU64,
    unreadable: AtomicU64,
    /// The next sequence of each publishing connection.
    next: [AtomicU64; LANES],
}

impl Count {
    /// A message of a peer arrived.
    pub(crate) fn message(&self, message: Bytes) {
        let walked = ChunkRef::decode(message)
            .ok()
            .and_then(|chunk| walk(&chunk));
        match walked.map(|(sequence, count)| (split_lane(sequence), count)) {
            Some(((lane, first), count)) if lane < LANES => self.walked(lane, first, count),
            _ => self.unreadable(),
        }
    }

    /// A chunk of ours arrived; a producer has one sequence for all.
    pub(crate) fn chunk(&self, chunk: &ChunkRef) {
        match walk(chunk) {
            Some((first, count)) => self.walked(0, first, count),
            None => self.unreadable(),
        }
    }

    /// A cookie without a sequence arrived.
    pub(crate) fn cookie(&self) {
        self.received.fetch_add(1, Relaxed);
    }

    /// Our producer said that these will not come.
    pub(crate) fn told_lost(&self, count: u64) {
        self.told_lost.fetch_add(count, Relaxed);
    }

    /// The connection ended.
    pub(crate) fn disconnected(&self) {
        self.disconnects.fetch_add(1, Relaxed);
    }

    /// A message arrived that cannot be read.
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

/// The counts of all subscribers of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Cookies, repeated ones included.
    pub(crate) received: u64,
    /// Cookies that came again, as far as they have sequences.
    pub(crate) repeated: u64,
    /// Cookies that the server declared lost.
    pub(crate) told_lost: u64,
    /// Connections that ended.
    pub(crate) disconnects: u64,
    /// Messages that could not be read.
    pub(crate) unreadable: u64,
}

impl Counts {
    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Count>) -> Self {
        all.fold(Self::default(), |sum, count| Self {
            received: sum.received + count.received.load(Relaxed),
            repeated: sum.repeated + count.repeated.load(Relaxed),
            told_lost: sum.told_lost + count.told_lost.load(Relaxed),
            disconnects: sum.disconnects + count.disconnects.load(Relaxed),
            unreadable: sum.unreadable + count.unreadable.load(Relaxed),
        })
    }

    /// Distinct cookies; of those without a sequence, all.
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
        count.told_lost(7);
        count.disconnected();
        let counts = Counts::sum([&count].into_iter());
        // What comes late counts as repeated: these servers keep the order of a connection.
        assert_eq!((counts.received, counts.repeated), (60, 20));
        assert_eq!(
            (counts.told_lost, counts.disconnects, counts.unreadable),
            (7, 1, 1)
        );
        assert_eq!(counts.delivered(), 40);
    }
}
