//! Answers to lookups, written once: as JSON, or as messages of gRPC.

use bytes::{Buf, BufMut};
use prost::{
    DecodeError, Message,
    encoding::{DecodeContext, WireType, encode_key, encode_varint, encoded_len_varint},
};
use proto::v1::user_matches::Status;

use super::request::AskedUser;
use crate::store::StoredMatch;

/// Receives the results of a lookup in the order of its users.
pub(super) trait Answer {
    /// A user that is invalid or was not read in time.
    fn without_matches(&mut self, user: &AskedUser<'_>);
    /// A user that was read.
    fn begin_user(&mut self);
    /// A live match of this user.
    fn add(&mut self, stored: &StoredMatch<'_>);
    /// The end of this user.
    fn end_user(&mut self);
}

/// Writes a JSON array of users, each as a map from DSPs to buyer uids.
pub(super) struct JsonUsers<'a> {
    output: &'a mut Vec<u8>,
    is_first_user: bool,
    is_first_match: bool,
}

impl<'a> JsonUsers<'a> {
    pub(super) fn new(output: &'a mut Vec<u8>) -> Self {
        Self {
            output,
            is_first_user: true,
            is_first_match: true,
        }
    }

    fn next_user(&mut self, text: &[u8]) {
        if !std::mem::take(&mut self.is_first_user) {
            self.output.push(b',');
        }
        self.output.extend_from_slice(text);
    }
}

impl Answer for JsonUsers<'_> {
    fn without_matches(&mut self, user: &AskedUser<'_>) {
        self.next_user(match user {
            AskedUser::Invalid => br#"{"error":"invalid"}"#,
            AskedUser::Valid(_) => b"null",
        });
    }

    fn begin_user(&mut self) {
        self.next_user(b"{");
        self.is_first_match = true;
    }

    fn add(&mut self, stored: &StoredMatch<'_>) {
        let separator: &[u8] = match std::mem::take(&mut self.is_first_match) {
            true => b"\"",
            false => b",\"",
        };
        self.output.extend_from_slice(separator);
        put_number(self.output, stored.dsp_id.0);
        self.output.extend_from_slice(b"\":");
        put_string(self.output, stored.buyer_uid);
    }

    fn end_user(&mut self) {
        self.output.push(b'}');
    }
}

/// Writes the field `users` of a `LookupResponse` in the encoding of protobuf. The messages of prost would need an allocation for each
/// match.
#[derive(Debug, Default)]
pub(super) struct EncodedUsers {
    /// The encoded response.
    pub(super) output: Vec<u8>,
    /// The current user.
    user: Vec<u8>,
}

impl EncodedUsers {
    fn end_message(&mut self) {
        encode_key(1, WireType::LengthDelimited, &mut self.output);
        encode_varint(self.user.len() as u64, &mut self.output);
        self.output.append(&mut self.user);
    }
}

impl Answer for EncodedUsers {
    fn without_matches(&mut self, user: &AskedUser<'_>) {
        let status = match user {
            AskedUser::Invalid => Status::Invalid,
            AskedUser::Valid(_) => Status::NotRead,
        };
        encode_key(2, WireType::Varint, &mut self.user);
        encode_varint(status as u64, &mut self.user);
        self.end_message();
    }

    fn begin_user(&mut self) {}

    fn add(&mut self, stored: &StoredMatch<'_>) {
        let (dsp_id, accepted) = (u64::from(stored.dsp_id.0), stored.accepted.0);
        let uid_bytes = stored.buyer_uid.len();
        let varints = [dsp_id, uid_bytes as u64, accepted].map(encoded_len_varint);
        let bytes = 3 + varints.iter().sum::<usize>() + uid_bytes;
        encode_key(1, WireType::LengthDelimited, &mut self.user);
        encode_varint(bytes as u64, &mut self.user);
        encode_key(1, WireType::Varint, &mut self.user);
        encode_varint(dsp_id, &mut self.user);
        encode_key(2, WireType::LengthDelimited, &mut self.user);
        encode_varint(uid_bytes as u64, &mut self.user);
        self.user.extend_from_slice(stored.buyer_uid);
        encode_key(3, WireType::Varint, &mut self.user);
        encode_varint(accepted, &mut self.user);
    }

    fn end_user(&mut self) {
        self.end_message();
    }
}

/// A response that is encoded already.
impl Message for EncodedUsers {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.output);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        _: &mut impl Buf,
        _: DecodeContext,
    ) -> Result<(), DecodeError> {
        unreachable!("responses are not decoded")
    }

    fn encoded_len(&self) -> usize {
        self.output.len()
    }

    fn clear(&mut self) {
        self.output.clear();
    }
}

/// Appends a decimal number.
pub(super) fn put_number(output: &mut Vec<u8>, number: u32) {
    let mut digits = [0; 10];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b"0123456789"[(rest % 10) as usize];
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    output.extend_from_slice(&digits[at..]);
}

/// Appends a JSON string.
pub(super) fn put_string(output: &mut Vec<u8>, text: &[u8]) {
    output.push(b'"');
    for part in text.split_inclusive(|byte| matches!(byte, 0..=0x1f | b'"' | b'\\')) {
        match part.split_last() {
            Some((special @ (b'"' | b'\\'), plain)) => {
                output.extend_from_slice(plain);
                output.extend_from_slice(&[b'\\', *special]);
            }
            // Not in ids of this system, but another program can write to MongoDB.
            Some((control @ 0..=0x1f, plain)) => {
                output.extend_from_slice(plain);
                output.extend_from_slice(format!("\\u{control:04x}").as_bytes());
            }
            _ => output.extend_from_slice(part),
        }
    }
    output.push(b'"');
}
