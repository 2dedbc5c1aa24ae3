//! Encoding of records on disk.
//!
//! Key: user id, a zero byte (which no user id contains), DSP as big-endian `u32`. So one range read returns all buyer uids of a user,
//! but none of another user whose id begins with the same bytes. Value: acceptance time as big-endian `u64`, then the buyer uid.

use proto::{
    limits::USER_ID_BYTES_MAX,
    units::{DspId, Epoch, Sequence, UnixMicros},
    wire::Scope,
};

use crate::{
    batch::{BatchCookie, Cursor},
    deletions::{Deletion, StoredDeletion},
};

pub(super) const NEWEST_KEY: &[u8] = b"newest";
pub(super) const LAYOUT_KEY: &[u8] = b"layout";
pub(super) const LAYOUT: &[u8] = b"1";
pub(super) const CURSOR_PREFIX: &[u8] = b"cursor/";
/// The key of the progress of filling this store from another node.
pub(super) const COPY_KEY: &[u8] = b"copy";
pub(super) const DELETION_PREFIX: &[u8] = b"deletion/";
/// Prefix of the keys of DSP slots. Like the other keys, it is part of the on-disk format.
pub(super) const SLOT_PREFIX: &[u8] = b"place/";

/// The key of a cookie, on the stack.
pub(super) struct CookieKey {
    bytes: [u8; USER_ID_BYTES_MAX + 5],
    length: usize,
}

impl CookieKey {
    pub(super) fn new(cookie: &BatchCookie<'_>) -> Self {
        Self::of(cookie.user_id, cookie.dsp_id)
    }

    pub(super) fn of(user_id: &[u8], dsp_id: DspId) -> Self {
        let user_id_bytes = user_id.len();
        let mut bytes = [0; USER_ID_BYTES_MAX + 5];
        bytes[..user_id_bytes].copy_from_slice(user_id);
        let length = user_id_bytes + 5;
        bytes[user_id_bytes + 1..length].copy_from_slice(&dsp_id.0.to_be_bytes());
        Self { bytes, length }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The DSP at the end of a key.
pub(super) fn dsp_of(key: &[u8]) -> Option<DspId> {
    key.last_chunk()
        .map(|bytes| DspId(u32::from_be_bytes(*bytes)))
}

/// The user id in the key of a cookie.
pub(super) fn user_of(key: &[u8]) -> &[u8] {
    &key[..key.len().saturating_sub(size_of::<u32>() + 1)]
}

/// The common prefix of all keys of a user.
pub(super) fn user_prefix(user_id: &[u8]) -> Vec<u8> {
    [user_id, &[0]].concat()
}

/// Decodes a key and its value.
pub(super) fn stored_cookie<'a>(key: &'a [u8], value: &'a [u8]) -> Option<BatchCookie<'a>> {
    let (user_id, dsp) = key.split_last_chunk::<4>()?;
    Some(BatchCookie {
        user_id: user_id.strip_suffix(&[0])?,
        dsp_id: DspId(u32::from_be_bytes(*dsp)),
        buyer_uid: value.get(8..)?,
        accepted: time(value)?,
        is_known: true,
    })
}

pub(super) fn put_value(value: &mut Vec<u8>, cookie: &BatchCookie<'_>) {
    value.clear();
    value.extend_from_slice(&cookie.accepted.0.to_be_bytes());
    value.extend_from_slice(cookie.buyer_uid);
}

/// The time at the start of a value.
pub(super) fn time(value: &[u8]) -> Option<UnixMicros> {
    be_u64(value).map(UnixMicros)
}

fn be_u64(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

pub(super) fn slot_key(dsp_id: DspId) -> Vec<u8> {
    [SLOT_PREFIX, &dsp_id.0.to_be_bytes()].concat()
}

pub(super) fn encode_cursor(cursor: &Cursor, committed: UnixMicros) -> (Vec<u8>, Vec<u8>) {
    let mut value = Vec::with_capacity(25);
    value.extend_from_slice(&cursor.epoch.0.to_be_bytes());
    value.extend_from_slice(&cursor.sequence.0.to_be_bytes());
    value.push(u8::from(cursor.complete));
    value.extend_from_slice(&committed.0.to_be_bytes());
    ([CURSOR_PREFIX, cursor.producer.as_bytes()].concat(), value)
}

/// When a cursor was committed.
pub(super) fn committed(value: &[u8]) -> UnixMicros {
    value.get(17..).and_then(time).unwrap_or_default()
}

pub(super) fn decode_cursor(key: &[u8], value: &[u8]) -> Option<Cursor> {
    let producer = std::str::from_utf8(key.strip_prefix(CURSOR_PREFIX)?).ok()?;
    Some(Cursor {
        producer: producer.into(),
        epoch: Epoch(be_u64(value)?),
        sequence: Sequence(be_u64(value.get(8..)?)?),
        complete: *value.get(16)? == 1,
    })
}

/// The key of a deletion: a prefix, then the same bytes as in the key of a cookie. The user is empty if a DSP is deleted.
pub(super) fn deletion_key(deletion: &Deletion) -> Vec<u8> {
    let (user_id, dsp_id) = deletion.ids();
    let key = CookieKey::of(user_id, dsp_id);
    [DELETION_PREFIX, key.as_slice()].concat()
}

/// The time of a deletion, and whether a deletion of a DSP is finished.
pub(super) fn deletion_value(deletion: &Deletion, is_finished: bool) -> Vec<u8> {
    let mut value = deletion.until.0.to_be_bytes().to_vec();
    value.push(u8::from(is_finished));
    value
}

pub(super) fn decode_deletion(key: &[u8], value: &[u8]) -> Option<StoredDeletion> {
    let (user_id, dsp) = key.strip_prefix(DELETION_PREFIX)?.split_last_chunk::<4>()?;
    Some(StoredDeletion {
        deletion: Deletion {
            scope: Scope::from_ids(
                user_id.strip_suffix(&[0])?.into(),
                DspId(u32::from_be_bytes(*dsp)),
            ),
            until: time(value)?,
        },
        is_finished: value.get(8) == Some(&1),
    })
}
