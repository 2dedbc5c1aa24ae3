//! Heartbeats of an idle `GetCookies` stream, so that no proxy closes it.
//!
//! Only bytes of messages pass through a proxy, and every complete message is a cookie. So a heartbeat is a part of the next
//! message, whose length is announced in advance: empty `padding` fields. The next cookie follows them, then padding up to the
//! announced length. Clients see one message with one cookie. A stream that ends repeats its last cookie there, because some clients report
//! a stream that ends inside a message as an error, whatever its status.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{FRAME_PREFIX_BYTES, PADDING};

/// Seconds without a cookie after which a heartbeat is due: less than the idle timeout of any usual proxy.
const INTERVAL: u32 = 5;

/// Announced length of a message: enough for five hours.
const MESSAGE_BYTES: usize = 8 << 10;

/// Bytes of the announced length that heartbeats leave for the cookie and its padding.
const RESERVED_BYTES: usize = 1 << 10;

/// An empty `padding` field.
const HEARTBEAT: [u8; 2] = [PADDING, 0];

/// Bytes of tag and length of the last padding.
const LAST_PADDING_BYTES: usize = 4;

/// The unfinished message of a stream.
#[derive(Debug, Default)]
pub struct IdleMessage {
    /// Bytes until the announced length; 0 if no message is unfinished.
    remaining: usize,
    /// Seconds since the last cookie.
    idle: u32,
    /// The last messages; only the last one if a message is unfinished.
    last: Bytes,
}

impl IdleMessage {
    /// The heartbeat that is due, if any, after a second without a cookie. None is due if the stream has been idle for hours.
    pub fn second(&mut self) -> Option<Bytes> {
        self.idle += 1;
        if !self.idle.is_multiple_of(INTERVAL) {
            return None;
        }
        let mut buffer = BytesMut::new();
        if self.remaining == 0 {
            self.remaining = MESSAGE_BYTES;
            self.last = Bytes::copy_from_slice(last_message(&self.last));
            buffer.put_u8(0);
            buffer.put_u32(u32::try_from(MESSAGE_BYTES).expect("a few KiB"));
        } else if self.remaining < RESERVED_BYTES + HEARTBEAT.len() {
            return None;
        }
        self.remaining -= HEARTBEAT.len();
        buffer.put_slice(&HEARTBEAT);
        Some(buffer.freeze())
    }

    /// The bytes of `messages`, of which the first completes the unfinished one, if any.
    pub fn complete(&mut self, messages: Bytes) -> Bytes {
        if messages.is_empty() {
            return messages;
        }
        (self.idle, self.last) = (0, messages.clone());
        if self.remaining == 0 {
            return messages;
        }
        let remaining = std::mem::take(&mut self.remaining);
        let (first, rest) = messages.split_at(message_bytes(&messages));
        let first = &first[FRAME_PREFIX_BYTES..];
        let zeros = remaining - first.len() - LAST_PADDING_BYTES;
        let mut buffer = BytesMut::with_capacity(remaining + rest.len());
        buffer.put_slice(first);
        // A length of three bytes in any case, so that every number of zeros is possible.
        let [low, middle, high] = [zeros & 127 | 128, zeros >> 7 & 127 | 128, zeros >> 14];
        buffer.put_u8(PADDING);
        for part in [low, middle, high] {
            buffer.put_u8(u8::try_from(part).expect("seven bits and a flag"));
        }
        buffer.put_bytes(0, zeros);
        buffer.put_slice(rest);
        buffer.freeze()
    }

    /// The bytes that complete the unfinished message before the stream ends: its last cookie again. `None` without an unfinished
    /// message, or if the stream has had no cookie.
    pub fn end(&mut self) -> Option<Bytes> {
        let last = std::mem::take(&mut self.last);
        (self.remaining > 0 && !last.is_empty()).then(|| self.complete(last))
    }
}

/// Length of the first message with its prefix.
fn message_bytes(messages: &[u8]) -> usize {
    let length = messages[1..FRAME_PREFIX_BYTES].iter();
    FRAME_PREFIX_BYTES + length.fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// The last one of messages; empty without messages.
fn last_message(mut messages: &[u8]) -> &[u8] {
    while !messages.is_empty() {
        let (first, rest) = messages.split_at(message_bytes(messages));
        if rest.is_empty() {
            return first;
        }
        messages = rest;
    }
    messages
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::v1::Cookie;

    /// Length prefix and message of a cookie with this user id.
    fn message(user_id: &str) -> Bytes {
        let cookie = Cookie {
            user_id: user_id.to_owned(),
            dsp_id: 17,
            buyer_uid: "b".repeat(256),
            ..Cookie::default()
        };
        super::super::encode_message(&cookie)
    }

    /// The user ids of messages.
    fn users(mut sent: &[u8]) -> Vec<String> {
        let mut users = Vec::new();
        while let Some((prefix, rest)) = sent.split_at_checked(FRAME_PREFIX_BYTES) {
            let length = u32::from_be_bytes(prefix[1..].try_into().unwrap());
            let (message, rest) = rest.split_at(usize::try_from(length).unwrap());
            users.push(Cookie::decode(message).unwrap().user_id);
            sent = rest;
        }
        assert!(sent.is_empty());
        users
    }

    #[test]
    fn heartbeats_are_a_part_of_the_next_message() {
        let two = [message("alice"), message("bob")].concat();
        for heartbeats in [0, 1, 2, 77, 20_000] {
            let mut idle = IdleMessage::default();
            let seconds = 0..heartbeats * usize::try_from(INTERVAL).unwrap();
            let beats: Vec<_> = seconds.filter_map(|_| idle.second()).collect();
            assert_eq!(beats.len() < heartbeats, heartbeats == 20_000);
            let mut sent = beats.concat();
            // Only deletions, which are omitted.
            sent.extend_from_slice(&idle.complete(Bytes::new()));
            sent.extend_from_slice(&idle.complete(two.clone().into()));
            assert_eq!(users(&sent), ["alice", "bob"], "{heartbeats}");
            let next = message(&"u".repeat(64));
            assert_eq!(idle.complete(next.clone()), next);
            sent = beat(&mut idle);
            sent.extend_from_slice(&idle.complete(next));
            assert_eq!(users(&sent), ["u".repeat(64)]);
        }
    }

    fn beat(idle: &mut IdleMessage) -> Vec<u8> {
        let mut beats = (0..INTERVAL).filter_map(|_| idle.second());
        beats.next().unwrap().to_vec()
    }

    #[test]
    fn idle_stream_ends_with_its_last_cookie() {
        let mut idle = IdleMessage::default();
        let two: Bytes = [message("alice"), message("bob")].concat().into();
        assert_eq!(idle.complete(two.clone()), two);
        assert_eq!(IdleMessage::default().end(), None);
        let mut sent = beat(&mut idle);
        sent.extend_from_slice(&idle.end().unwrap());
        assert_eq!(users(&sent), ["bob"]);
        assert_eq!(idle.end(), None);
        beat(&mut idle);
        assert_eq!(IdleMessage::default().end(), None);
    }
}
