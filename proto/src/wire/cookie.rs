//! Decoding of single cookies.

use super::{
    CookieRef, WireError,
    fields::{Fields, Value},
};
use crate::limits::AGE_MICROS_MAX;

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
pub fn cookie_dsp(encoded: &[u8]) -> Result<u32, WireError> {
    let mut fields = Fields::new(encoded);
    while let Some((field, value)) = fields.next()? {
        if let (2, Value::Varint(dsp_id)) = (field, value) {
            return u32::try_from(dsp_id).map_err(|_| WireError::Range);
        }
    }
    Ok(0)
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
pub fn decode_cookie(encoded: &[u8]) -> Result<CookieRef<'_>, WireError> {
    let mut cookie = CookieRef {
        user_id: "",
        dsp_id: 0,
        buyer_uid: "",
        age_micros: 0,
    };
    let mut deleted = false;
    let mut fields = Fields::new(encoded);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, Value::Bytes(bytes)) => cookie.user_id = utf8(bytes)?,
            (2, Value::Varint(dsp_id)) => {
                cookie.dsp_id = u32::try_from(dsp_id).map_err(|_| WireError::Range)?;
            }
            (3, Value::Bytes(bytes)) => cookie.buyer_uid = utf8(bytes)?,
            (4, Value::Varint(age)) => cookie.age_micros = age.min(AGE_MICROS_MAX),
            (5, Value::Varint(value)) => deleted = value != 0,
            (1..=5, _) => return Err(WireError::WireType),
            _ => {}
        }
    }
    if deleted == cookie.is_deletion() {
        Ok(cookie)
    } else {
        Err(WireError::Deletion)
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::Utf8)
}
