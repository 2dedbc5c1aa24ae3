//! Messages for other brokers: a sequence number, a count and encoded cookies.
//!
//! A message is a `Chunk`, as in a producer's stream, without its epoch and time: 14 bytes and the cookies. Every
//! reader therefore decodes the same bytes with the same code.

use bytes::Bytes;
use fastrand::Rng;
use proto::wire::{ChunkRef, CookieRef, put_cookie};

/// Maximum cookies per message. At up to 68 bytes each, they fit into the default limit of NATS (1 MiB).
pub(crate) const BATCH_MAX: u32 = 10_000;

/// Tag of `Chunk.first_sequence`, a fixed64.
const FIRST_SEQUENCE: u8 = 2 << 3 | 1;
/// Tag of `Chunk.count`, a fixed32.
const COUNT: u8 = 3 << 3 | 5;

/// Upper bound of an encoded cookie: 20 + 36 bytes of ids and 10 of encoding.
const COOKIE_BYTES_MAX: usize = 68;

/// Number of publishing connections, called lanes. Each lane numbers its messages separately.
pub(crate) const LANES: usize = 4;

/// Bytes passed to a client in one call: 30 messages of 500 cookies. Larger bursts would exceed the duration of the load.
pub(crate) const BURST_BYTES: usize = 1024 * 1024;

/// Maximum messages passed to a client in one call.
const BURST_MESSAGES: usize = 512;

/// Maximum bytes requested by one XREAD: 123 entries of 500 cookies.
const READ_BYTES: usize = 4 * 1024 * 1024;

/// Maximum entries requested by one XREAD.
const READ_ENTRIES: usize = 1_000;

/// Bits of a sequence number below its lane number, sufficient for all cookies of a run.
const LANE_SHIFT: u32 = 48;

/// Distinct cookies of a lane. Generating each cookie would cost more than publishing it.
const COOKIES: usize = 4096;

/// Splits a sequence number into its lane and the sequence number in the lane.
pub(crate) fn split_lane(sequence: u64) -> (usize, u64) {
    let lane = usize::try_from(sequence >> LANE_SHIFT).unwrap_or(usize::MAX);
    (lane, sequence & ((1 << LANE_SHIFT) - 1))
}

/// Generator of the messages of one lane.
#[derive(Debug)]
pub(crate) struct Messages {
    cookies: Vec<Vec<u8>>,
    batch: u32,
    lane: u64,
    next: u64,
    /// Index of the next cookie.
    cookie: usize,
}

impl Messages {
    /// A generator of messages with `batch` cookies; `lane` is below [`LANES`].
    pub(crate) fn new(batch: u32, lane: u64) -> Self {
        let mut random = Rng::with_seed(lane);
        Self {
            cookies: (0..COOKIES).map(|_| cookie(&mut random)).collect(),
            batch,
            lane,
            next: 0,
            cookie: 0,
        }
    }

    /// Cookies in all messages so far.
    pub(crate) fn made(&self) -> u64 {
        self.next
    }

    /// The next message. Sequence numbers start at 0 in each lane.
    pub(crate) fn make(&mut self) -> Bytes {
        let count = self.batch as usize;
        let mut buffer = Vec::with_capacity(14 + count * COOKIE_BYTES_MAX);
        buffer.push(FIRST_SEQUENCE);
        buffer.extend((self.lane << LANE_SHIFT | self.next).to_le_bytes());
        buffer.push(COUNT);
        buffer.extend(self.batch.to_le_bytes());
        for _ in 0..count {
            buffer.extend_from_slice(&self.cookies[self.cookie]);
            self.cookie = (self.cookie + 1) % COOKIES;
        }
        self.next += u64::from(self.batch);
        Bytes::from(buffer)
    }
}

/// A random cookie whose ids have the same length as in `bench load`.
fn cookie(random: &mut Rng) -> Vec<u8> {
    let user_id: String = (0..20).map(|_| random.digit(16)).collect();
    let uid_bytes = random.usize(16..=36);
    let buyer_uid: String = (0..uid_bytes).map(|_| random.alphanumeric()).collect();
    let cookie = CookieRef {
        user_id: &user_id,
        dsp_id: random.u32(1..=20),
        buyer_uid: &buyer_uid,
        age_micros: 0,
    };
    let mut buffer = Vec::new();
    put_cookie(&mut buffer, &cookie);
    buffer
}

/// Decodes the cookies of a chunk; returns its first sequence number and count, or `None` if the count does not match.
pub(crate) fn walk(chunk: &ChunkRef) -> Option<(u64, u32)> {
    let mut walked = 0;
    for cookie in chunk.encoded_cookies() {
        std::hint::black_box(cookie.ok()?);
        walked += 1;
    }
    let header = chunk.header();
    (walked == header.count).then_some((header.first_sequence, walked))
}

/// Messages of `batch` cookies passed to a client in one call.
pub(crate) fn burst(batch: u32) -> u64 {
    let burst = BURST_BYTES / (batch as usize * COOKIE_BYTES_MAX);
    burst.clamp(1, BURST_MESSAGES) as u64
}

/// Entries of `batch` cookies requested by one XREAD.
pub(crate) fn xread_entries(batch: u32) -> usize {
    (READ_BYTES / (batch as usize * COOKIE_BYTES_MAX)).clamp(1, READ_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_as_chunks() {
        let mut messages = Messages::new(3, 2);
        for first in [0, 3, 6] {
            let chunk = ChunkRef::decode(messages.make()).unwrap();
            assert!(
                chunk
                    .cookies()
                    .all(|cookie| cookie.unwrap().user_id.len() == 20)
            );
            let (sequence, count) = walk(&chunk).unwrap();
            assert_eq!((split_lane(sequence), count), ((2, first), 3));
        }
        assert_eq!(messages.made(), 9);
    }

    #[test]
    fn bursts_and_reads_have_bounded_sizes() {
        assert_eq!([1, 500, 10_000].map(burst), [512, 30, 1]);
        assert_eq!([1, 500, 10_000].map(xread_entries), [1_000, 123, 6]);
    }
}
