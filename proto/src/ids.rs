//! Validation of ids.
//!
//! | id | bytes | characters |
//! |---|---|---|
//! | user id | 1 to [`USER_ID_BYTES_MAX`] | printable ASCII without space |
//! | DSP id | | a number from 1 to 4294967295 |
//! | buyer uid | 1 to [`BUYER_UID_BYTES_MAX`] | UTF-8 without control characters |
//! | subscriber name, producer id | 1 to [`SUBSCRIBER_NAME_BYTES_MAX`] | printable UTF-8; the first and last are not white space |
//!
//! Two checks differ from the table. The edge rejects user ids with a comma, because a comma can end an HTTP cookie
//! ([`check_user_cookie`]). A node accepts control characters in buyer uids, because the producer has checked them
//! ([`is_buyer_uid_of_stream`]).
//!
//! ```
//! use cookiesync_proto::ids::{self, InvalidId};
//!
//! assert!(ids::is_user_id(b"alice"));
//! assert_eq!(ids::check_buyer_uid("two\nlines", 256), Err(InvalidId::Character));
//! ```

pub mod hygiene;

use crate::limits::{BUYER_UID_BYTES_MAX, SUBSCRIBER_NAME_BYTES_MAX, USER_ID_BYTES_MAX};

/// Why an id is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InvalidId {
    /// It is empty.
    Empty,
    /// It has too many bytes.
    TooLong,
    /// It contains a forbidden character.
    Character,
}

/// Whether these bytes are a valid user id.
#[inline]
pub fn is_user_id(id: &[u8]) -> bool {
    (1..=USER_ID_BYTES_MAX).contains(&id.len()) && all(id, is_of_user_id)
}

/// Validates the value of an HTTP cookie as a user id of at most `bytes_max` bytes without commas. `bytes_max` must not exceed
/// [`USER_ID_BYTES_MAX`]. Semicolons cannot occur, because they end the cookie.
///
/// # Errors
/// The first violation: length, then characters.
#[inline]
pub fn check_user_cookie(value: &[u8], bytes_max: usize) -> Result<&str, InvalidId> {
    check_length(value, bytes_max)?;
    if !all(value, |byte| is_of_user_id(byte) && byte != b',') {
        return Err(InvalidId::Character);
    }
    std::str::from_utf8(value).map_err(|_| InvalidId::Character)
}

/// Validates a buyer uid of at most `bytes_max` bytes, which must not exceed [`BUYER_UID_BYTES_MAX`].
///
/// # Errors
/// The first violation: length, then characters.
#[inline]
pub fn check_buyer_uid(uid: &str, bytes_max: usize) -> Result<(), InvalidId> {
    check_text(uid, bytes_max)
}

/// Whether a node accepts this buyer uid from a stream. Does not check for control characters: the edge has done so, and they are
/// harmless here.
#[inline]
pub fn is_buyer_uid_of_stream(uid: &str) -> bool {
    (1..=BUYER_UID_BYTES_MAX).contains(&uid.len())
}

/// Validates the name of a subscriber, or the id of a producer.
///
/// # Errors
/// The first violation: length, then characters.
pub fn check_name(name: &str) -> Result<(), InvalidId> {
    check_length(name.as_bytes(), SUBSCRIBER_NAME_BYTES_MAX)?;
    if is_printable_name(name) {
        Ok(())
    } else {
        Err(InvalidId::Character)
    }
}

/// Whether a person can read the name: it is not blank, does not begin or end with a space, and every character is printable.
///
/// Combining characters and all white space other than the space count as not printable.
pub fn is_printable_name(name: &str) -> bool {
    let is_quoted = |it: char| matches!(it, '"' | '\'' | '\\');
    let is_printable = |it: char| is_quoted(it) || it.escape_debug().len() == 1;
    !name.is_empty() && name.trim() == name && name.chars().all(is_printable)
}

#[inline]
fn check_text(text: &str, bytes_max: usize) -> Result<(), InvalidId> {
    check_length(text.as_bytes(), bytes_max)?;
    // ASCII control characters are below space, or 0x7F. All others are encoded as 0xC2 and a second byte.
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

/// Whether all bytes are valid. No early exit, so that it compiles to a few vector instructions.
#[inline]
fn all(bytes: &[u8], is_valid: impl Fn(u8) -> bool) -> bool {
    bytes.iter().fold(true, |all, &byte| all & is_valid(byte))
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
    fn user_id_is_printable_ascii_without_comma_in_a_cookie() {
        // Validity in a stream, and in an HTTP cookie.
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
    fn buyer_uid_is_text_without_control_characters() {
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
            let in_stream = !matches!(expected, EMPTY | TOO_LONG);
            assert_eq!(is_buyer_uid_of_stream(text), in_stream, "{text:?}");
        }
        assert_eq!(check_buyer_uid("bbb", 2), TOO_LONG);
    }

    #[test]
    fn name_is_printable_text() {
        for (name, expected) in [
            ("node-7.example", OK),
            ("Köln 1 €", OK),
            ("a'b\"c\\d", OK),
            ("名前", OK),
            (&*long(256), OK),
            (&*long(257), TOO_LONG),
            ("", EMPTY),
            (" ", CHARACTER),
            ("   ", CHARACTER),
            ("\t", CHARACTER),
            (" a", CHARACTER),
            ("a ", CHARACTER),
            ("a\nb", CHARACTER),
            ("a\u{7f}", CHARACTER),
            ("\u{a0}", CHARACTER),
            ("\u{2003}", CHARACTER),
            ("\u{3000}", CHARACTER),
            ("\u{200b}", CHARACTER),
            ("\u{feff}a", CHARACTER),
            ("a\u{202e}b", CHARACTER),
            ("a\u{ad}b", CHARACTER),
            ("\u{2028}", CHARACTER),
            ("\u{301}", CHARACTER),
        ] {
            assert_eq!(check_name(name), expected, "{name:?}");
        }
    }

    /// The fast check agrees with `char::is_control`.
    #[test]
    fn control_characters_match_unicode() {
        for char in '\0'..='\u{3000}' {
            let is_valid = check_buyer_uid(&format!("a{char}b"), 256).is_ok();
            assert_eq!(is_valid, !char.is_control(), "{char:?}");
        }
    }
}
