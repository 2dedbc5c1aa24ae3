//! The parameters of a query, found in one pass. Every reader of a request uses this result.
//!
//! Names and values are percent-decoded; a plus sign is not decoded. Without an escape, nothing is copied: values borrow from
//! the query. Other values are decoded into a [`Scratch`] of the caller, which needs no more bytes than the query has.

use std::mem;

use crate::contracts::privacy::Signals;

/// The parameter that marks the second request of a browser that got a user id ([`mint`](super::mint)).
pub(super) const MARKER: &str = "cookiesync_bounce";

/// Queries of up to this size are decoded without an allocation.
const SHORT_BYTES: usize = 512;

/// Memory for decoded values.
#[derive(Debug, Default)]
pub struct Scratch {
    short: Option<[u8; SHORT_BYTES]>,
    long: Vec<u8>,
}

/// Why a value has no decoded form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecodable {
    /// A percent sign is not followed by two hexadecimal digits.
    Escape,
    /// The decoded bytes are not UTF-8.
    NotUtf8,
}

/// The value of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value<'a> {
    /// The decoded value. An invalid escape stays in it, and so does each escape of a value that is not UTF-8: thus it contains a
    /// percent sign, which no privacy signal may contain.
    pub text: &'a str,
    /// Set if `text` is not the complete decoded value.
    pub undecodable: Option<Undecodable>,
}

/// A parameter that must not be repeated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Single<'a> {
    #[default]
    Missing,
    Once(Value<'a>),
    Repeated,
}

/// The parameters that the edge reads.
#[derive(Clone, Copy, Default)]
pub struct Query<'a> {
    /// `d`.
    pub(super) dsp_id: Single<'a>,
    /// `b`.
    pub(super) buyer_uid: Single<'a>,
    /// The first `bidder`, of `/setuid`.
    pub(super) bidder: Option<Value<'a>>,
    /// The first `uid`, of `/setuid`.
    pub(super) uid: Option<Value<'a>>,
    /// The first `f`, of `/setuid`.
    pub(super) format: Option<Value<'a>>,
    /// Whether `p`, of `/setuid`, marks the return of a browser from the DSP of a plan.
    pub(super) is_return: bool,
    /// Whether the query has the marker [`mint`](super::mint) of a second request.
    pub(super) is_redirected: bool,
    /// The privacy signals. Of a repeated parameter, the first value that is not empty counts.
    pub signals: Signals<'a>,
}

impl<'a> Query<'a> {
    /// Finds all parameters.
    #[inline]
    pub fn parse(query: &'a str, scratch: &'a mut Scratch) -> Self {
        let mut found = Self::default();
        if memchr::memchr(b'%', query.as_bytes()).is_some() {
            found.decode(query, scratch);
            return found;
        }
        let mut rest = query;
        loop {
            let end = memchr::memchr(b'&', rest.as_bytes());
            let parameter = &rest[..end.unwrap_or(rest.len())];
            match parameter.as_bytes() {
                [b'd', b'=', ..] => found.dsp_id.add(Value::plain(&parameter[2..])),
                [b'b', b'=', ..] => found.buyer_uid.add(Value::plain(&parameter[2..])),
                [b'b' | b'c' | b'f' | b'g' | b'p' | b'u', ..] => {
                    if let Some((name, value)) = parameter.split_once('=') {
                        found.add(name, Value::plain(value));
                    }
                }
                _ => {}
            }
            match end {
                Some(end) => rest = &rest[end + 1..],
                None => return found,
            }
        }
    }

    #[inline(never)]
    fn decode(&mut self, query: &'a str, scratch: &'a mut Scratch) {
        let mut free = match query.len() {
            ..=SHORT_BYTES => &mut scratch.short.insert([0; SHORT_BYTES])[..],
            length => {
                scratch.long.resize(length, 0);
                &mut scratch.long
            }
        };
        for parameter in query.split('&') {
            if let Some((name, value)) = parameter.split_once('=') {
                let name = Value::decode(name, &mut free);
                self.add(name.text, Value::decode(value, &mut free));
            }
        }
    }

    #[inline(never)]
    fn add(&mut self, name: &str, value: Value<'a>) {
        let signals = &mut self.signals;
        let signal = match name {
            "d" => return self.dsp_id.add(value),
            "b" => return self.buyer_uid.add(value),
            "bidder" => return self.bidder = self.bidder.or(Some(value)),
            "uid" => return self.uid = self.uid.or(Some(value)),
            "f" => return self.format = self.format.or(Some(value)),
            "p" => return self.is_return |= value.text == "1",
            MARKER => return self.is_redirected = true,
            "coppa" => &mut signals.coppa,
            "gdpr" => &mut signals.gdpr,
            "gdpr_consent" => &mut signals.gdpr_consent,
            "gpp" => &mut signals.gpp,
            "gpp_sid" => &mut signals.gpp_sid,
            "us_privacy" => &mut signals.us_privacy,
            _ => return,
        };
        if signal.is_empty() {
            *signal = value.text;
        }
    }
}

impl<'a> Single<'a> {
    #[inline]
    fn add(&mut self, value: Value<'a>) {
        *self = match self {
            Self::Missing => Self::Once(value),
            _ => Self::Repeated,
        };
    }

    /// The value.
    ///
    /// # Errors
    /// One of the two errors, if it is missing or repeated.
    pub(super) fn value<E>(self, missing: E, repeated: E) -> Result<Value<'a>, E> {
        match self {
            Self::Missing => Err(missing),
            Self::Once(value) => Ok(value),
            Self::Repeated => Err(repeated),
        }
    }
}

impl<'a> Value<'a> {
    /// A value without escapes.
    pub(super) fn plain(text: &'a str) -> Self {
        Self {
            text,
            undecodable: None,
        }
    }

    /// Decodes a value into the first bytes of `free`.
    ///
    /// Stricter than [the URL standard](https://url.spec.whatwg.org/#percent-decode), which keeps invalid escapes: an id with
    /// one would match no user.
    fn decode(sent: &'a str, free: &mut &'a mut [u8]) -> Self {
        let mut value = Self::plain(sent);
        if !sent.contains('%') {
            return value;
        }
        let (mut rest, mut length) = (sent.as_bytes(), 0);
        while let [first, after @ ..] = rest {
            let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
            let escaped = match first {
                b'%' => digit(0).zip(digit(1)),
                _ => None,
            };
            if *first == b'%' && escaped.is_none() {
                value.undecodable = Some(Undecodable::Escape);
            }
            let escaped = escaped.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
            free[length] = escaped.unwrap_or(*first);
            rest = &rest[escaped.map_or(1, |_| 3)..];
            length += 1;
        }
        let (decoded, unused) = mem::take(free).split_at_mut(length);
        *free = unused;
        match str::from_utf8(decoded) {
            Ok(text) => value.text = text,
            Err(_) => value.undecodable = value.undecodable.or(Some(Undecodable::NotUtf8)),
        }
        value
    }
}

#[cfg(test)]
mod tests;
