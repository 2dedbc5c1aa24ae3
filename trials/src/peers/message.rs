//! What a message of a peer holds: a sequence, a count, and encoded cookies, as in a chunk of ours.
//!
//! It is a `Chunk` without epoch and time, 14 bytes and the cookies, so that every reader walks over the same bytes
//! with the same code.

use bench::traffic::Traffic;
use bytes::Bytes;
use proto::wire::{ChunkRef, put_cookie};

/// Tag of `Chunk.first_sequence`, a fixed64.
const FIRST_SEQUENCE: u8 = 2 << 3 | 1;
/// Tag of `Chunk.count`, a fixed32.
const COUNT: u8 = 3 << 3 | 5;

/// More than the cookies of [`Traffic`] take in a message: 20 + 36 bytes of ids and 10 around them.
pub(super) const COOKIE_BYTES_MAX: usize = 68;

/// Connections over which a peer's messages are published; each counts the sequences of its own messages.
pub(super) const LANES: usize = 4;

/// What is given to a client at once: enough for 30 messages of 500 cookies, little enough to end in time.
pub(super) const BURST_BYTES: usize = 1024 * 1024;

/// Most messages given to a client at once.
const BURST_MESSAGES: usize = 512;

/// Most that one XREAD asks for: 123 entries of 500 cookies.
const READ_BYTES: usize = 4 * 1024 * 1024;

/// Most entries that one XREAD asks for.
const READ_ENTRIES: usize = 1_000;

/// The bits of a sequence below those that name its lane: more cookies than a run can make.
const LANE_SHIFT: u32 = 48;

/// Lane, and sequence within it.
pub(super) fn split_lane(sequence: u64) -> (usize, u64) {
    let lane = usize::try_from(sequence >> LANE_SHIFT).unwrap_or(usize::MAX);
    (lane, sequence & ((1 << LANE_SHIFT) - 1))
}

/// Makes the messages of a lane, one after the other.
#[derive(Debug)]
pub(super) struct Messages {
    traffic: Traffic,
    cookies_each: u32,
    lane: u64,
    next: u64,
}

impl Messages {
    /// `lane` is below [`LANES`].
    pub(super) fn new(traffic: Traffic, cookies_each: u32, lane: u64) -> Self {
        Self {
            traffic,
            cookies_each,
            lane,
            next: 0,
        }
    }

    /// Cookies in all messages made.
    pub(super) fn cookies(&self) -> u64 {
        self.next
    }

    /// The next message; sequences begin with 0 in each lane.
    pub(super) fn make(&mut self) -> Bytes {
        let count = self.cookies_each;
        let mut buffer = Vec::with_capacity(14 + count as usize * COOKIE_BYTES_MAX);
        buffer.push(FIRST_SEQUENCE);
        buffer.extend((self.lane << LANE_SHIFT | self.next).to_le_bytes());
        buffer.push(COUNT);
        buffer.extend(count.to_le_bytes());
        for number in self.next..self.next + u64::from(count) {
            let cookie = self.traffic.cookie(self.lane, number);
            put_cookie(&mut buffer, &cookie.to_wire());
        }
        self.next += u64::from(count);
        Bytes::from(buffer)
    }
}

/// First sequence and count of a message, after a walk over its cookies; `None` when it cannot be read.
pub(super) fn walk(message: Bytes) -> Option<(u64, u32)> {
    walk_chunk(&ChunkRef::decode(message).ok()?)
}

/// First sequence and count of a chunk, after a walk over its cookies; `None` when they do not agree.
pub(super) fn walk_chunk(chunk: &ChunkRef) -> Option<(u64, u32)> {
    let mut walked = 0;
    for cookie in chunk.encoded_cookies() {
        std::hint::black_box(cookie.ok()?);
        walked += 1;
    }
    let header = chunk.header();
    (walked == header.count).then_some((header.first_sequence, walked))
}

/// Messages of `batch` cookies that are given to a client at once.
pub(super) fn burst(batch: u32) -> u64 {
    let burst = BURST_BYTES / (batch as usize * COOKIE_BYTES_MAX);
    burst.clamp(1, BURST_MESSAGES) as u64
}

/// Entries of `batch` cookies that one XREAD asks for.
pub(super) fn xread_entries(batch: u32) -> usize {
    (READ_BYTES / (batch as usize * COOKIE_BYTES_MAX)).clamp(1, READ_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_read_again() {
        let traffic = Traffic::new(1, None);
        let mut messages = Messages::new(traffic.clone(), 3, 2);
        for first in [0, 3, 6] {
            let message = messages.make();
            let chunk = ChunkRef::decode(message.clone()).unwrap();
            let users: Vec<_> = chunk
                .cookies()
                .map(|c| c.unwrap().user_id.to_owned())
                .collect();
            let expected: Vec<_> = (first..first + 3)
                .map(|number| traffic.cookie(2, number).user_id().to_owned())
                .collect();
            assert_eq!(users, expected);
            let (sequence, count) = walk(message).unwrap();
            assert_eq!((split_lane(sequence), count), ((2, first), 3));
        }
        assert_eq!(messages.cookies(), 9);
        assert_eq!(walk(Bytes::from_static(b"no chunk")), None);
    }

    #[test]
    fn a_burst_of_large_messages_is_no_single_message() {
        assert_eq!([1, 500, 10_000].map(burst), [512, 30, 1]);
    }

    #[test]
    fn an_xread_asks_for_many_entries() {
        assert_eq!([1, 500, 10_000].map(xread_entries), [1_000, 123, 6]);
    }
}
