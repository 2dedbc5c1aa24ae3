//! Encoding and decoding of single cookies.

use super::{
    CHUNK_COOKIES, COOKIE_AGE, COOKIE_BUYER_UID, COOKIE_DELETED, COOKIE_DSP_ID, COOKIE_USER_ID,
    CookieRef, Record, Scope, WireError,
    fields::{Fields, Value},
    put_tagged, varint_bytes,
};
use crate::{limits::AGE_MICROS_MAX, units::DspId};

/// The first encoded cookie in the output of [`put_cookie`](super::put_cookie), and the bytes that its field takes there.
///
/// # Errors
/// If the bytes do not begin with a cookie.
#[inline]
pub fn first_cookie(cookies: &[u8]) -> Result<(&[u8], usize), WireError> {
    let mut fields = Fields::new(cookies);
    match fields.next()? {
        Some((5, Value::Bytes(cookie))) => Ok((cookie, cookies.len() - fields.rest().len())),
        Some(_) => Err(WireError::WireType),
        None => Err(WireError::Truncated),
    }
}

/// The DSP of an encoded `Cookie`, without decoding further fields; 0 if it has none.
///
/// # Errors
/// If the bytes before the DSP are not a valid start of a `Cookie`.
#[inline]
pub fn cookie_dsp(encoded: &[u8]) -> Result<DspId, WireError> {
    let mut fields = Fields::new(encoded);
    while let Some((field, value)) = fields.next()? {
        if let (2, Value::Varint(dsp_id)) = (field, value) {
            return dsp(dsp_id);
        }
    }
    Ok(DspId::NONE)
}

/// Whether one encoded `Cookie` is a deletion, without reading the rest.
///
/// # Errors
/// When the bytes are not a `Cookie`.
pub(super) fn is_deletion(encoded: &[u8]) -> Result<bool, WireError> {
    let mut fields = Fields::new(encoded);
    while let Some((field, value)) = fields.next()? {
        if let (5, Value::Varint(deleted)) = (field, value) {
            return Ok(deleted != 0);
        }
    }
    Ok(false)
}

/// Decodes a `Cookie`, borrowing its strings. Clamps its age to [`AGE_MICROS_MAX`].
///
/// # Errors
/// If the bytes are not a `Cookie`.
pub fn decode_record(encoded: &[u8]) -> Result<Record<'_>, WireError> {
    let (mut user_id, mut dsp_id, mut buyer_uid, mut age_micros, mut deleted) =
        ("", DspId::NONE, "", 0, false);
    let mut fields = Fields::new(encoded);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Bytes(bytes)) => user_id = utf8(bytes)?,
            (2, Value::Varint(id)) => dsp_id = dsp(id)?,
            (3, Value::Bytes(bytes)) => buyer_uid = utf8(bytes)?,
            (4, Value::Varint(age)) => age_micros = age.min(AGE_MICROS_MAX),
            (5, Value::Varint(value)) => deleted = value != 0,
            (1..=5, _) => return Err(WireError::WireType),
            _ => {}
        }
    }
    match (deleted, buyer_uid) {
        (false, "") => Err(WireError::Deletion),
        (false, _) => Ok(Record::Set(CookieRef {
            user_id,
            dsp_id,
            buyer_uid,
            age_micros,
        })),
        (true, "") if !user_id.is_empty() || dsp_id.is_valid() => Ok(Record::Delete {
            scope: Scope::from_ids(user_id, dsp_id),
            age_micros,
        }),
        (true, _) => Err(WireError::Deletion),
    }
}

/// Number of bytes that [`put_cookie`] appends for this cookie.
pub fn cookie_bytes(cookie: &CookieRef<'_>) -> usize {
    record_bytes(&Record::Set(*cookie))
}

/// Number of bytes that [`put_record`] appends for this record.
pub fn record_bytes(record: &Record<'_>) -> usize {
    let length = EncodedCookie::of(record).bytes();
    1 + varint_bytes(length as u64) + length
}

/// Appends a cookie as a field of a chunk: tag, length, `Cookie`.
///
/// Allocates only to grow `buffer`.
#[inline]
pub fn put_cookie(buffer: &mut Vec<u8>, cookie: &CookieRef<'_>) {
    EncodedCookie::set(cookie).put(buffer);
}

/// Appends a record like [`put_cookie`].
#[inline]
pub fn put_record(buffer: &mut Vec<u8>, record: &Record<'_>) {
    EncodedCookie::of(record).put(buffer);
}

/// The fields of a `Cookie` message.
struct EncodedCookie<'a> {
    user_id: &'a str,
    dsp_id: DspId,
    /// `None` in a deletion.
    buyer_uid: Option<&'a str>,
    age_micros: u64,
}

impl<'a> EncodedCookie<'a> {
    #[inline]
    fn set(cookie: &CookieRef<'a>) -> Self {
        Self {
            user_id: cookie.user_id,
            dsp_id: cookie.dsp_id,
            buyer_uid: Some(cookie.buyer_uid),
            age_micros: cookie.age_micros,
        }
    }

    #[inline]
    fn of(record: &Record<'a>) -> Self {
        match *record {
            Record::Set(cookie) => Self::set(&cookie),
            Record::Delete { scope, age_micros } => {
                let (user_id, dsp_id) = scope.ids();
                Self {
                    user_id,
                    dsp_id,
                    buyer_uid: None,
                    age_micros,
                }
            }
        }
    }

    #[inline]
    fn bytes(&self) -> usize {
        let age = match self.age_micros {
            0 => 0,
            age => 1 + varint_bytes(age),
        };
        // A deletion has a flag of one byte instead of a buyer uid.
        let value = self
            .buyer_uid
            .map_or(1, |uid| varint_bytes(uid.len() as u64) + uid.len());
        1 + varint_bytes(self.user_id.len() as u64)
            + self.user_id.len()
            + 1
            + varint_bytes(u64::from(self.dsp_id.0))
            + 1
            + value
            + age
    }

    #[inline]
    fn put(&self, buffer: &mut Vec<u8>) {
        put_tagged(buffer, CHUNK_COOKIES, self.bytes() as u64);
        put_text(buffer, COOKIE_USER_ID, self.user_id);
        put_tagged(buffer, COOKIE_DSP_ID, u64::from(self.dsp_id.0));
        match self.buyer_uid {
            Some(uid) => put_text(buffer, COOKIE_BUYER_UID, uid),
            None => put_tagged(buffer, COOKIE_DELETED, 1),
        }
        if self.age_micros > 0 {
            put_tagged(buffer, COOKIE_AGE, self.age_micros);
        }
    }
}

#[inline]
fn put_text(buffer: &mut Vec<u8>, tag: u8, text: &str) {
    put_tagged(buffer, tag, text.len() as u64);
    buffer.extend_from_slice(text.as_bytes());
}

fn dsp(id: u64) -> Result<DspId, WireError> {
    u32::try_from(id).map(DspId).map_err(|_| WireError::Range)
}

fn utf8(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::Utf8)
}
