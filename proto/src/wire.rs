//! Encoding and decoding of cookies and chunks without a message object per cookie.
//!
//! Repeated protobuf fields can be concatenated, so consecutive encoded cookies are the body of a [`v1::Chunk`]. [`put_cookie`]
//! appends a cookie in this form. [`seal`] writes the headers into the space reserved before the first cookie. The result is a
//! complete gRPC message with length prefix, which any number of streams can send unchanged. [`ChunkRef`] iterates over the same
//! bytes on the receiving side and borrows the strings.
//!
//! All input is untrusted: lengths are checked, and decoding neither panics nor recurses.
//!
//! ```
//! use bytes::Bytes;
//! use cookiesync_proto::{
//!     units::{DspId, Epoch, Sequence, UnixMicros},
//!     wire::{self, ChunkHeader, CookieRef, FRAME_PREFIX_BYTES, HEADROOM_BYTES, Record, StreamMessage},
//! };
//!
//! let cookie = CookieRef { user_id: "alice", dsp_id: DspId(17), buyer_uid: "b-1", age_micros: 0 };
//! let mut buffer = vec![0; HEADROOM_BYTES];
//! wire::put_cookie(&mut buffer, &cookie);
//! let header = ChunkHeader { epoch: Epoch(1), first_sequence: Sequence(1), count: 1, accepted: UnixMicros::NONE };
//! let start = wire::seal(&mut buffer, &header);
//!
//! let message = Bytes::from(buffer).slice(start + FRAME_PREFIX_BYTES..);
//! let StreamMessage::Chunk(chunk) = StreamMessage::decode(message)? else {
//!     panic!("not a chunk");
//! };
//! assert_eq!(chunk.records().next(), Some(Ok(Record::Set(cookie))));
//! # Ok::<(), wire::WireError>(())
//! ```

mod cookie;
mod fields;
mod idle;
mod record;

use bytes::Bytes;
use prost::Message;

use self::cookie::is_deletion;
pub use self::cookie::{
    cookie_bytes, cookie_dsp, decode_record, first_cookie, put_cookie, put_record, record_bytes,
};
use self::fields::{FIXED32, FIXED64, Fields, LEN, VARINT, Value};
pub use self::{
    idle::IdleMessage,
    record::{CookieRef, Record, Scope},
};
use crate::{
    limits::SMALL_FRAME_BYTES,
    units::{Epoch, Sequence, UnixMicros},
    v1,
};

/// Bytes of the prefix of a gRPC message: a compression flag and a big-endian length.
pub const FRAME_PREFIX_BYTES: usize = 5;

/// Bytes to reserve for [`seal`] before the first cookie: prefix, `Event` tag and length, `Chunk` header.
pub const HEADROOM_BYTES: usize = FRAME_PREFIX_BYTES + 1 + 5 + CHUNK_HEADER_BYTES;

/// Maximum bytes that [`seal`] appends after the last cookie.
pub const TAILROOM_BYTES: usize = SMALL_FRAME_BYTES;

const CHUNK_HEADER_BYTES: usize = 9 + 9 + 5 + 9;

const fn tag(field: u64, wire_type: u64) -> u8 {
    let tag = field << 3 | wire_type;
    assert!(tag < 0x80, "a one-byte tag");
    low_byte(tag)
}

const COOKIE_USER_ID: u8 = tag(1, LEN);
const COOKIE_DSP_ID: u8 = tag(2, VARINT);
const COOKIE_BUYER_UID: u8 = tag(3, LEN);
const COOKIE_AGE: u8 = tag(4, VARINT);
const COOKIE_DELETED: u8 = tag(5, VARINT);
const CHUNK_EPOCH: u8 = tag(1, FIXED64);
const CHUNK_FIRST_SEQUENCE: u8 = tag(2, FIXED64);
const CHUNK_COUNT: u8 = tag(3, FIXED32);
const CHUNK_ACCEPTED: u8 = tag(4, FIXED64);
const CHUNK_COOKIES: u8 = tag(5, LEN);
const EVENT_CHUNK: u8 = tag(2, LEN);
const PADDING: u8 = tag(15, LEN);

/// Why bytes violate the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends in the middle of a field.
    #[error("message is truncated")]
    Truncated,
    /// A variable-length integer is longer than 64 bits.
    #[error("integer is too long")]
    Varint,
    /// A field has an unknown wire type, or one that differs from the schema.
    #[error("field has an unexpected wire type")]
    WireType,
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    Utf8,
    /// A number does not fit its field.
    #[error("number is out of range")]
    Range,
    /// A cookie has both a buyer uid and the deletion flag, or neither; or a deletion has neither a user nor a DSP.
    #[error("cookie must have either a buyer uid, or the deletion flag and a user or a DSP")]
    Deletion,
    /// The number of cookies in a chunk is zero, or differs from its header.
    #[error("cookie count of the chunk is invalid")]
    Count,
}

/// Header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkHeader {
    /// The epoch of the sequence numbers.
    pub epoch: Epoch,
    /// The sequence number of the first cookie.
    pub first_sequence: Sequence,
    /// The number of cookies.
    pub count: u32,
    /// Time when the first cookie was accepted. A cookie may be older by its [age](Record::age_micros).
    pub accepted: UnixMicros,
}

impl ChunkHeader {
    /// The sequence number of the last cookie.
    ///
    /// # Panics
    /// If the chunk is empty; [`ChunkRef::decode`] never returns an empty chunk.
    pub fn last_sequence(&self) -> Sequence {
        assert!(self.count > 0, "a chunk has at least one cookie");
        self.first_sequence + (u64::from(self.count) - 1)
    }
}

/// Converts `HEADROOM_BYTES` of reserved space and the cookies after it into a complete gRPC message with an
/// [`Event`](v1::Event), in place. Returns the offset of the message.
///
/// # Panics
/// If `buffer` is shorter than the reserved space, or the message exceeds 4 GiB.
pub fn seal(buffer: &mut Vec<u8>, header: &ChunkHeader) -> usize {
    assert!(
        buffer.len() >= HEADROOM_BYTES,
        "space is reserved for the headers"
    );
    let cookies_at = HEADROOM_BYTES;
    let chunk_at = cookies_at - CHUNK_HEADER_BYTES;
    let chunk_bytes = buffer.len() - chunk_at;

    let head = &mut buffer[chunk_at..cookies_at];
    head[0] = CHUNK_EPOCH;
    head[1..9].copy_from_slice(&header.epoch.0.to_le_bytes());
    head[9] = CHUNK_FIRST_SEQUENCE;
    head[10..18].copy_from_slice(&header.first_sequence.0.to_le_bytes());
    head[18] = CHUNK_COUNT;
    head[19..23].copy_from_slice(&header.count.to_le_bytes());
    head[23] = CHUNK_ACCEPTED;
    head[24..32].copy_from_slice(&header.accepted.0.to_le_bytes());

    let event_at = chunk_at - varint_bytes(chunk_bytes as u64) - 1;
    buffer[event_at] = EVENT_CHUNK;
    let mut length = Vec::with_capacity(5);
    put_varint(&mut length, chunk_bytes as u64);
    buffer[event_at + 1..chunk_at].copy_from_slice(&length);

    let message_at = event_at - FRAME_PREFIX_BYTES;
    put_padding(buffer, message_at);
    set_prefix(buffer, message_at);
    message_at
}

/// Encodes an event other than a chunk as a complete gRPC message with length prefix and padding.
pub fn encode_event(event: v1::event::Event) -> Bytes {
    let event = v1::Event {
        event: Some(event),
        padding: Bytes::new(),
    };
    let mut buffer = encoded(&event);
    put_padding(&mut buffer, 0);
    set_prefix(&mut buffer, 0);
    Bytes::from(buffer)
}

/// Encodes a message as a complete gRPC message with length prefix.
pub fn encode_message(message: &impl Message) -> Bytes {
    let mut buffer = encoded(message);
    set_prefix(&mut buffer, 0);
    Bytes::from(buffer)
}

/// An encoded message after an empty length prefix.
fn encoded(message: &impl Message) -> Vec<u8> {
    let mut buffer = vec![0; FRAME_PREFIX_BYTES];
    message
        .encode(&mut buffer)
        .expect("a Vec grows to any length");
    buffer
}

/// Converts the cookies of a chunk to consecutive `GetCookies` messages, each with its length prefix. Omits deletions, which are
/// only at the start of a chunk, unless `deletions` is set.
///
/// The last cookie is padded so that the result has at least [`SMALL_FRAME_BYTES`]. The result is empty if all cookies are omitted.
///
/// # Errors
/// If the chunk is malformed.
pub fn cookie_messages(chunk: &ChunkRef, deletions: bool) -> Result<Bytes, WireError> {
    let spare = chunk.header.count as usize * (FRAME_PREFIX_BYTES - 2) + SMALL_FRAME_BYTES;
    let mut buffer = Vec::with_capacity(chunk.body.len() + spare);
    let (mut last_at, mut skips) = (0, !deletions);
    for cookie in chunk.encoded_cookies() {
        let cookie = cookie?;
        skips = skips && is_deletion(cookie)?;
        if skips {
            continue;
        }
        last_at = buffer.len();
        buffer.extend_from_slice(&[0; FRAME_PREFIX_BYTES]);
        buffer.extend_from_slice(cookie);
        set_prefix(&mut buffer, last_at);
    }
    if buffer.is_empty() {
        return Ok(Bytes::new());
    }
    put_padding(&mut buffer, 0);
    set_prefix(&mut buffer, last_at);
    Ok(Bytes::from(buffer))
}

/// A received chunk: its header, and its encoded cookies.
#[derive(Debug, Clone)]
pub struct ChunkRef {
    header: ChunkHeader,
    body: Bytes,
}

/// A message of a `Subscribe` stream; chunks stay encoded.
#[derive(Debug, Clone)]
pub enum StreamMessage {
    /// A chunk; its cookies are not validated yet.
    Chunk(ChunkRef),
    /// Any other event.
    Event(v1::event::Event),
    /// An event of a later protocol version; skip it.
    Unknown,
}

impl StreamMessage {
    /// Decodes an `Event` message without its length prefix.
    ///
    /// # Errors
    /// If it is not an `Event`. The cookies of a chunk are validated only by [`ChunkRef::records`].
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut fields = Fields::new(&message);
        while let Some((field, value)) = fields.next()? {
            if let (2, Value::Bytes(chunk)) = (field, value) {
                return Ok(Self::Chunk(ChunkRef::decode(message.slice_ref(chunk))?));
            }
        }
        let event = v1::Event::decode(message).map_err(|_| WireError::WireType)?;
        Ok(event.event.map_or(Self::Unknown, Self::Event))
    }
}

impl ChunkRef {
    /// Decodes the header of an encoded `Chunk`.
    ///
    /// # Errors
    /// If the bytes are not a `Chunk`, its count is 0, or its sequence numbers exceed 2^64.
    pub fn decode(body: Bytes) -> Result<Self, WireError> {
        let mut header = ChunkHeader::default();
        let mut fields = Fields::new(&body);
        // Constant time, because all known encoders write the scalar fields first.
        while let Some((field, value)) = fields.next()? {
            match (field, value) {
                (1, Value::Fixed64(epoch)) => header.epoch = Epoch(epoch),
                (2, Value::Fixed64(sequence)) => header.first_sequence = Sequence(sequence),
                (3, Value::Fixed32(count)) => header.count = count,
                (4, Value::Fixed64(micros)) => header.accepted = UnixMicros(micros),
                (5, Value::Bytes(_)) if header.count > 0 => break,
                (1..=5, Value::Bytes(_)) if field == 5 => {}
                (1..=5, _) => return Err(WireError::WireType),
                _ => {}
            }
        }
        if header.count == 0 {
            return Err(WireError::Count);
        }
        header
            .first_sequence
            .0
            .checked_add(u64::from(header.count))
            .ok_or(WireError::Range)?;
        Ok(Self { header, body })
    }

    /// The header.
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// The encoded `Chunk` message, from which [`Record`] borrows.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Iterates over the records in order; stops after an error.
    ///
    /// In a malformed chunk the number of records may differ from the header's count; callers must compare them.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'_>, WireError>> {
        self.encoded_cookies()
            .map(|encoded| encoded.and_then(decode_record))
    }

    /// Iterates over the encoded `Cookie` messages.
    pub fn encoded_cookies(&self) -> impl Iterator<Item = Result<&[u8], WireError>> {
        let mut fields = Fields::new(&self.body);
        std::iter::from_fn(move || {
            loop {
                match fields.next() {
                    Ok(Some((5, Value::Bytes(cookie)))) => return Some(Ok(cookie)),
                    Ok(Some((5, _))) => return Some(fields.fail(WireError::WireType)),
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }
}

const fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

fn varint_bytes(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    // A seventh of the bits, rounded up: exact up to 64 bits, and cheaper than a division.
    (bits * 9 + 64) / 64
}

/// Appends a tag and an integer: a field, or the length before its bytes.
#[inline]
fn put_tagged(buffer: &mut Vec<u8>, tag: u8, value: u64) {
    if value < 0x80 {
        // One capacity check for nearly all fields.
        buffer.extend_from_slice(&[tag, low_byte(value)]);
    } else {
        buffer.push(tag);
        put_varint(buffer, value);
    }
}

fn put_varint(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(0x80 | low_byte(value));
        value >>= 7;
    }
    buffer.push(low_byte(value));
}

/// Pads the message at `message_at` to at least `SMALL_FRAME_BYTES` with a field 15 of zeros.
fn put_padding(buffer: &mut Vec<u8>, message_at: usize) {
    let missing = SMALL_FRAME_BYTES.saturating_sub(buffer.len() - message_at);
    if missing == 0 {
        return;
    }
    // Tag and length take two bytes, or three if the length needs two; 130 missing bytes become 131.
    let zeros = match missing {
        0..=2 => 0,
        3..=129 => missing - 2,
        _ => (missing - 3).max(128),
    };
    put_tagged(buffer, PADDING, zeros as u64);
    buffer.resize(buffer.len() + zeros, 0);
}

/// Writes the length prefix of the message from `at` to the end.
fn set_prefix(buffer: &mut [u8], at: usize) {
    let length = buffer.len() - at - FRAME_PREFIX_BYTES;
    let length = u32::try_from(length).expect("a message is far below 4 GiB");
    buffer[at] = 0;
    buffer[at + 1..at + FRAME_PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests;
