//! Which ids are legal: one rule for each kind.
//!
//! | id | bytes | which |
//! |---|---|---|
//! | user id | 1 to [`USER_ID_BYTES_MAX`] | printable ASCII without space |
//! | DSP id | | 1 to 4294967295 |
//! | buyer uid | 1 to [`BUYER_UID_BYTES_MAX`] | UTF-8 without control characters |
//! | name of a subscriber or a producer | 1 to [`SUBSCRIBER_NAME_BYTES_MAX`] | UTF-8 without control characters |
//!
//! Two places differ from the table, and both rules are here. The edge accepts fewer user ids, because in an HTTP cookie
//! a comma or semicolon can end them ([`check_user_cookie`]). A node accepts more buyer uids, because it does not look
//! for control characters in what a producer has checked ([`is_buyer_uid_of_stream`]).

use crate::limits::{BUYER_UID_BYTES_MAX, SUBSCRIBER_NAME_BYTES_MAX, USER_ID_BYTES_MAX};

/// Why something is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidId {
    /// It has no bytes.
    Empty,
    /// It has more bytes than its kind may have.
    TooLong,
    /// It holds a character that its kind may not hold.
    Character,
}

/// Whether these bytes are a user id.
#[inline]
#[must_use]
pub fn is_user_id(id: &[u8]) -> bool {
    (1..=USER_ID_BYTES_MAX).contains(&id.len()) && all(id, is_of_user_id)
}

/// The user id that the value of an HTTP cookie is: one of at most `bytes_max` bytes, which must be no more than
/// [`USER_ID_BYTES_MAX`], without commas. A semicolon ends the cookie, so its value holds none.
///
/// # Errors
/// What is wrong first: its length, then its bytes.
#[inline]
pub fn check_user_cookie(value: &[u8], bytes_max: usize) -> Result<&str, InvalidId> {
    check_length(value, bytes_max)?;
    if !all(value, |byte| is_of_user_id(byte) && byte != b',') {
        return Err(InvalidId::Character);
    }
    std::str::from_utf8(value).map_err(|_| InvalidId::Character)
}

/// Whether this number is a DSP id.
#[inline]
#[must_use]
pub const fn is_dsp_id(id: u32) -> bool {
    id > 0
}

/// Checks a buyer uid of at most `bytes_max` bytes, which must be no more than [`BUYER_UID_BYTES_MAX`].
///
/// # Errors
/// What is wrong first: its length, then its characters.
#[inline]
pub fn check_buyer_uid(uid: &str, bytes_max: usize) -> Result<(), InvalidId> {
    check_text(uid, bytes_max)
}

/// Whether a node accepts this buyer uid from a producer's stream. Control characters are not looked for: the edge has
/// done so, and here they do no harm.
#[inline]
#[must_use]
pub fn is_buyer_uid_of_stream(uid: &str) -> bool {
    (1..=BUYER_UID_BYTES_MAX).contains(&uid.len())
}

/// Checks the name of a subscriber, or the id of a producer.
///
/// # Errors
/// What is wrong first: its length, then its characters.
pub fn check_name(name: &str) -> Result<(), InvalidId> {
    check_text(name, SUBSCRIBER_NAME_BYTES_MAX)
}

#[inline]
fn check_text(text: &str, bytes_max: usize) -> Result<(), InvalidId> {
    check_length(text.as_bytes(), bytes_max)?;
    // Every control character has a byte that no other ASCII character has, or begins with 0xC2.
    let is_harmless = |byte: u8| byte >= b' ' && byte != 0x7f && byte != 0xc2;
    if !all(text.as_bytes(), is_harmless) && text.chars().any(char::is_control) {
        return Err(InvalidId::Character);
    }
    Ok(())
}

#[inline]
fn check_length(bytes: &[u8], bytes_max: usize) -> Result<(), InvalidId> {
    match bytes.len() {
        0 => Err(InvalidId::Empty),
        length if length > bytes_max => Err(InvalidId::TooLong),
        _ => Ok(()),
    }
}

#[inline]
fn is_of_user_id(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// Whether all bytes are good. All are looked at, without leaving early: that is what makes it a few vector
/// instructions.
#[inline]
fn all(bytes: &[u8], is_good: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(true, |all, &byte| all & is_good(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Result<(), InvalidId> = Ok(());
    const EMPTY: Result<(), InvalidId> = Err(InvalidId::Empty);
    const TOO_LONG: Result<(), InvalidId> = Err(InvalidId::TooLong);
    const CHARACTER: Result<(), InvalidId> = Err(InvalidId::Character);

    fn long(bytes: usize) -> String {
        "x".repeat(bytes)
    }

    #[test]
    fn user_id_is_printable_ascii_and_one_of_a_cookie_has_no_comma() {
        // As in a stream, and as in an HTTP cookie.
        for (id, in_stream, in_cookie) in [
            ("", false, EMPTY),
            ("u", true, OK),
            ("!~\"'\\=%&/", true, OK),
            (&*long(64), true, OK),
            (&*long(65), false, TOO_LONG),
            ("a,b", true, CHARACTER),
            ("a b", false, CHARACTER),
            ("a\tb", false, CHARACTER),
            ("a\0b", false, CHARACTER),
            ("a\x7fb", false, CHARACTER),
            ("ü", false, CHARACTER),
            (&*(long(65) + " "), false, TOO_LONG),
        ] {
            let cookie = check_user_cookie(id.as_bytes(), USER_ID_BYTES_MAX);
            assert_eq!(is_user_id(id.as_bytes()), in_stream, "{id:?}");
            assert_eq!(cookie, in_cookie.map(|()| id), "{id:?}");
        }
        for byte in 0..=u8::MAX {
            let is_printable = (0x21..=0x7e).contains(&byte);
            assert_eq!(is_user_id(&[b'u', byte, b'u']), is_printable, "{byte:#x}");
        }
        assert_eq!(check_user_cookie(b"uuu", 2), Err(InvalidId::TooLong));
        assert_eq!(check_user_cookie(b"uu", 2), Ok("uu"));
    }

    #[test]
    fn dsp_id_is_every_number_but_zero() {
        assert!(!is_dsp_id(0));
        assert!(is_dsp_id(1) && is_dsp_id(u32::MAX));
    }

    #[test]
    fn buyer_uid_and_name_are_text_without_control_characters() {
        for (text, expected) in [
            ("", EMPTY),
            ("b", OK),
            (" $ü=/&,;\u{a0}\u{200b}€", OK),
            (&*long(256), OK),
            (&*long(257), TOO_LONG),
            ("a\0", CHARACTER),
            ("\n", CHARACTER),
            ("a\x1f", CHARACTER),
            ("\x7f", CHARACTER),
            ("\u{80}", CHARACTER),
            ("a\u{9f}", CHARACTER),
            (&*(long(257) + "\n"), TOO_LONG),
        ] {
            assert_eq!(check_buyer_uid(text, 256), expected, "{text:?}");
            assert_eq!(check_name(text), expected, "{text:?}");
            let in_stream = !matches!(expected, EMPTY | TOO_LONG);
            assert_eq!(is_buyer_uid_of_stream(text), in_stream, "{text:?}");
        }
        assert_eq!(check_buyer_uid("bbb", 2), TOO_LONG);
    }

    /// The fast look for control characters finds each of them and nothing else.
    #[test]
    fn control_characters_are_those_of_unicode() {
        for char in '\0'..='\u{3000}' {
            let is_good = check_name(&format!("a{char}b")).is_ok();
            assert_eq!(is_good, !char.is_control(), "{char:?}");
        }
    }
}
