//! What a new node reads from another node: its state, and pages of cookies or deletions. Does no I/O.
//!
//! A page is a sequence of [chunks](proto::wire) with their length prefixes, as on the stream of a producer. Chunks limit ages
//! to [`AGE_MICROS_MAX`], so older records are in chunks of their own. The position of the next page, and the floor of the table
//! of deletions, are headers.

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::{
    archive::Events,
    limits::AGE_MICROS_MAX,
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::{
        ChunkHeader, ChunkRef, HEADROOM_BYTES, Record, StreamMessage, WireError, put_record, seal,
    },
};
use serde::{Deserialize, Serialize};

use crate::batch::Cursor;

/// Paths of a node's state, of its cookies, and of its deletions.
pub const NODE_PATH: &str = "/v1/cookies/node";
/// See [`NODE_PATH`].
pub const COOKIES_PATH: &str = "/v1/cookies/all";
/// See [`NODE_PATH`].
pub const DELETIONS_PATH: &str = "/v1/cookies/deletions";

/// Header with the position of the next page, percent-encoded; absent at the end.
pub const NEXT_HEADER: &str = "cookiesync-next";

/// Header with the floor of the table of deletions, in microseconds since the Unix epoch.
pub const FLOOR_HEADER: &str = "cookiesync-floor";

/// Maximum number of records in a page.
pub const PAGE_RECORDS_MAX: usize = 16_384;

/// Maximum bytes of a page: more than the largest records need.
pub const PAGE_BYTES_MAX: usize = 8 << 20;

/// Bytes of a chunk at which it is sealed.
const CHUNK_BYTES: usize = 64 << 10;

/// The state of a node that others copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Random id of its process.
    pub process: u64,
    /// The order of positions in its store.
    pub order: String,
    /// Approximate number of cookies in its store.
    pub cookies: u64,
    /// Number of deletions in its table.
    pub deletions: usize,
    /// By producer, the epoch and sequence number up to which its cookies are durable.
    pub durable: BTreeMap<String, (u64, u64)>,
}

impl NodeState {
    /// Whether its store has all cookies up to this position.
    pub fn has(&self, cursor: &Cursor) -> bool {
        let durable = self.durable.get(&*cursor.producer);
        durable >= Some(&(cursor.epoch.0, cursor.sequence.0))
    }
}

/// Some records, in the order of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyPage {
    /// Encoded chunks.
    pub chunks: Bytes,
    /// Position of the next page; `None` at the end.
    pub next: Option<String>,
}

/// The position after a record, in the order of one kind of store.
pub fn position(order: &str, user_id: &str, dsp_id: DspId) -> String {
    format!("{order}:{dsp_id}:{user_id}")
}

/// The user and DSP of a position, which are not validated. Positions of other kinds of stores mean the start.
pub fn parse_position<'a>(order: &str, position: &'a str) -> (&'a str, DspId) {
    let parse = || {
        let (dsp_id, user_id) = position
            .strip_prefix(order)?
            .strip_prefix(':')?
            .split_once(':')?;
        Some((user_id, dsp_id.parse().ok()?))
    };
    parse().unwrap_or(("", DspId::NONE))
}

/// Encodes records with their times as chunks. Ages are relative to the newest record.
pub fn encode<'a>(records: impl Iterator<Item = (Record<'a>, UnixMicros)> + Clone) -> Bytes {
    let newest = records.clone().map(|(_, time)| time).max();
    let newest = newest.unwrap_or_default();
    let mut body = Vec::new();
    let mut seal_part = |part: u64, (mut buffer, count): (Vec<u8>, u32)| {
        let header = ChunkHeader {
            epoch: Epoch(1),
            first_sequence: Sequence(1),
            count,
            accepted: newest.before(part * AGE_MICROS_MAX),
        };
        let start = seal(&mut buffer, &header);
        body.extend_from_slice(&buffer[start..]);
    };
    let mut open: BTreeMap<u64, (Vec<u8>, u32)> = BTreeMap::new();
    for (record, time) in records {
        let age = newest.since(time);
        let part = age / AGE_MICROS_MAX;
        let (buffer, count) = open
            .entry(part)
            .or_insert_with(|| (vec![0; HEADROOM_BYTES], 0));
        put_record(buffer, &record.with_age(age % AGE_MICROS_MAX));
        *count += 1;
        if buffer.len() >= CHUNK_BYTES
            && let Some(full) = open.remove(&part)
        {
            seal_part(part, full);
        }
    }
    for (part, rest) in open {
        seal_part(part, rest);
    }
    body.into()
}

/// Splits a page into its chunks, whose records are not validated yet.
///
/// # Errors
/// If it does not consist of chunks.
pub fn decode(body: &Bytes) -> Result<Vec<ChunkRef>, WireError> {
    let chunks = Events::new(body.clone()).map(|event| match event? {
        StreamMessage::Chunk(chunk) => Ok(chunk),
        _ => Err(WireError::WireType),
    });
    chunks.collect()
}

#[cfg(test)]
mod tests {
    use proto::wire::{CookieRef, Scope};

    use super::*;

    const DAY: u64 = 24 * 3600 * 1_000_000;

    fn cookie(user_id: &str) -> Record<'_> {
        Record::Set(CookieRef {
            user_id,
            dsp_id: DspId(7),
            buyer_uid: "b",
            age_micros: 0,
        })
    }

    #[test]
    fn decoded_records_have_their_original_times() {
        let users: Vec<String> = (0..5_000).map(|user| format!("user-{user}")).collect();
        // Over 50 days, in no order.
        let time = |at: u64| UnixMicros(100 * DAY + at * 7919 % 5_000 * DAY / 100 + at);
        let mut records: Vec<_> = (0..)
            .zip(&users)
            .map(|(at, user)| (cookie(user), time(at)))
            .collect();
        let scope = Scope::User("user-1");
        records.push((
            Record::Delete {
                scope,
                age_micros: 0,
            },
            UnixMicros(1),
        ));
        let body = encode(records.iter().copied());
        let chunks = decode(&body).unwrap();
        assert!(chunks.iter().all(|it| it.body().len() < CHUNK_BYTES + 400));
        let mut decoded = Vec::new();
        for chunk in &chunks {
            let before = decoded.len();
            for record in chunk.records() {
                let record = record.unwrap();
                let time = record.accepted(chunk.header().accepted);
                decoded.push((record.with_age(0), time));
            }
            assert_eq!(chunk.header().count as usize, decoded.len() - before);
        }
        let key = |it: &(Record<'_>, UnixMicros)| it.1;
        decoded.sort_by_key(key);
        records.sort_by_key(key);
        assert_eq!(decoded, records);
        assert_eq!(encode(std::iter::empty()), Bytes::new());
    }

    #[test]
    fn truncated_page_is_an_error() {
        let body = encode([(cookie("u"), UnixMicros(9))].into_iter());
        for length in 1..body.len() {
            assert!(decode(&body.slice(..length)).is_err(), "{length}");
        }
        assert_eq!(decode(&body).unwrap().len(), 1);
    }

    #[test]
    fn position_of_another_order_is_the_start() {
        for (text, expected) in [
            (position("u", "a:b", DspId(7)).as_str(), ("a:b", DspId(7))),
            ("u:7:", ("", DspId(7))),
            ("d:7:a", ("", DspId::NONE)),
            ("u:x:a", ("", DspId::NONE)),
            ("", ("", DspId::NONE)),
        ] {
            assert_eq!(parse_position("u", text), expected, "{text}");
        }
    }

    #[test]
    fn node_has_a_position_of_the_same_or_an_earlier_epoch() {
        let node = NodeState {
            durable: [("p".to_owned(), (5, 10))].into(),
            ..NodeState::default()
        };
        let cursor = |producer: &str, epoch, sequence| Cursor {
            producer: producer.into(),
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            complete: false,
        };
        assert!(node.has(&cursor("p", 5, 10)) && node.has(&cursor("p", 4, 11)));
        assert!(!node.has(&cursor("p", 5, 11)) && !node.has(&cursor("p", 6, 0)));
        assert!(!node.has(&cursor("q", 1, 0)));
    }
}
