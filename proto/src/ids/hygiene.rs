//! Finds buyer uids that are not ids: macros that an ad server did not replace, and placeholders for a missing id.
//!
//! Does no I/O and allocates nothing. An ordinary id costs one vectorized pass over its bytes and a few comparisons. Only a
//! value with a character that macros use is examined further: once as it is, and once after it was percent-decoded again.
//! This takes linear time.

use percent_encoding::percent_decode;
use serde::Deserialize;

use crate::limits::BUYER_UID_BYTES_MAX;

/// Why a value is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flaw {
    /// A macro that was not replaced, such as `${USER_ID}`.
    Macro,
    /// A placeholder for a missing id, such as `null`.
    Sentinel,
}

/// Sentinels, matched case-insensitively.
const SENTINELS: [&[u8]; 7] = [
    b"-1",
    b"null",
    b"undefined",
    b"none",
    b"nil",
    b"nan",
    b"[object object]",
];

/// Published macros that look like an id.
const WORDS: [&str; 5] = [
    "BUYERUID",
    "NTV_USER_ID",
    "SspCookieUserId",
    "33XUSERID33X",
    "xxEMODO_IDxx",
];

/// Start and end of a value that is a macro with any name.
const FORMS: [(&[u8], &[u8]); 5] = [
    (b"[", b"]"),
    (b"{", b"}"),
    (b"#{", b"}"),
    (b"<", b">"),
    (b"%%", b"%%"),
];

/// Start and end of a value that is a macro with a name in capitals. With other names, it may be an id.
const CAPITAL_FORMS: [(&[u8], &[u8]); 4] =
    [(b"%", b"%"), (b"#", b""), (b"@", b"@"), (b"__", b"__")];

/// Start and end of a macro that may be anywhere in a value.
const INNER_FORMS: [(&[u8], &[u8]); 3] = [(b"${", b"}"), (b"{{", b"}}"), (b"%%", b"%%")];

/// The flaw of a buyer uid; `None` for an id. `macros` are additional macros that look like an id.
pub fn flaw(uid: &str, macros: &[String]) -> Option<Flaw> {
    let bytes = uid.as_bytes();
    // No branch per byte, so that the compiler vectorizes the loop.
    let has_mark = bytes.iter().fold(false, |found, byte| {
        found | matches!(byte, b'$' | b'{' | b'%')
    });
    if has_mark || matches!(bytes, [b'[' | b'<' | b'#' | b'@' | b'_', ..]) {
        return flaw_of_marked(bytes, macros);
    }
    flaw_of_plain(bytes, macros)
}

#[cold]
fn flaw_of_marked(bytes: &[u8], macros: &[String]) -> Option<Flaw> {
    let flaw = |bytes: &[u8]| {
        let is_macro = || !is_guid(unbraced(bytes)) && is_macro(bytes);
        flaw_of_plain(bytes, macros).or_else(|| is_macro().then_some(Flaw::Macro))
    };
    flaw(bytes).or_else(|| {
        let (mut decoded, mut length) = ([0; BUYER_UID_BYTES_MAX], 0);
        for (target, byte) in decoded.iter_mut().zip(percent_decode(bytes)) {
            *target = byte;
            length += 1;
        }
        flaw(&decoded[..length])
    })
}

/// The flaw of a value that is a sentinel, or a known macro that looks like an id.
fn flaw_of_plain(bytes: &[u8], macros: &[String]) -> Option<Flaw> {
    let is_bytes = |word: &str| word.as_bytes() == bytes;
    if is_sentinel(bytes) {
        Some(Flaw::Sentinel)
    } else if WORDS.iter().any(|word| is_bytes(word)) || macros.iter().any(|it| is_bytes(it)) {
        Some(Flaw::Macro)
    } else {
        None
    }
}

fn is_sentinel(bytes: &[u8]) -> bool {
    let id = unbraced(bytes);
    let mut digits = id.iter().filter(|&&byte| byte != b'-');
    // Usually false at the first character.
    let is_zero = digits.all(|&byte| byte == b'0') && (is_guid(id) || !id.contains(&b'-'));
    (is_zero && !id.is_empty()) || SENTINELS.iter().any(|it| it.eq_ignore_ascii_case(bytes))
}

fn unbraced(bytes: &[u8]) -> &[u8] {
    between(bytes, b"{", b"}").unwrap_or(bytes)
}

/// Whether the bytes are 32 hexadecimal digits, with or without the hyphens of a GUID.
fn is_guid(bytes: &[u8]) -> bool {
    let is_hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
    let mut parts = bytes.split(|&byte| byte == b'-');
    match bytes.len() {
        32 => is_hex(bytes),
        36 => {
            let has_length = |length| {
                parts
                    .next()
                    .is_some_and(|it| it.len() == length && is_hex(it))
            };
            [8, 4, 4, 4, 12].into_iter().all(has_length)
        }
        _ => false,
    }
}

fn is_macro(bytes: &[u8]) -> bool {
    let holds = |(open, close): &(&[u8], &[u8]), is_name: fn(&[u8]) -> bool| {
        between(bytes, open, close).is_some_and(is_name)
    };
    bytes == b"%s"
        || FORMS.iter().any(|form| holds(form, is_name))
        || CAPITAL_FORMS
            .iter()
            .any(|form| holds(form, is_capital_name))
        || is_shell_variable(bytes)
        || INNER_FORMS.iter().any(|form| contains_macro(bytes, *form))
}

/// Whether the bytes are a name after one or more `$` and before any number of `$`.
fn is_shell_variable(bytes: &[u8]) -> bool {
    let is_dollar = |byte: &u8| *byte == b'$';
    let start = bytes.iter().take_while(|&it| is_dollar(it)).count();
    let end = bytes.iter().rposition(|it| !is_dollar(it));
    start > 0 && end.is_some_and(|end| is_name(&bytes[start..=end]))
}

/// Whether the bytes contain a macro of this form. Linear, because no name contains `open`.
fn contains_macro(bytes: &[u8], (open, close): (&[u8], &[u8])) -> bool {
    (0..bytes.len()).any(|at| {
        let Some(rest) = bytes[at..].strip_prefix(open) else {
            return false;
        };
        let length = rest.iter().take_while(|byte| is_name_byte(byte)).count();
        let (name, rest) = rest.split_at(length);
        rest.starts_with(close) && is_name(name)
    })
}

fn between<'a>(bytes: &'a [u8], open: &[u8], close: &[u8]) -> Option<&'a [u8]> {
    bytes.strip_prefix(open)?.strip_suffix(close)
}

fn is_name(bytes: &[u8]) -> bool {
    matches!(bytes, [b'A'..=b'Z' | b'a'..=b'z' | b'_', ..]) && bytes.iter().all(is_name_byte)
}

fn is_name_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.: -".contains(byte)
}

/// Whether the bytes are a capital and at least two more capitals, digits or underscores.
fn is_capital_name(bytes: &[u8]) -> bool {
    let is_allowed = |byte: &u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
    matches!(bytes, [b'A'..=b'Z', _, _, ..]) && bytes.iter().all(is_allowed)
}

#[cfg(test)]
mod tests;
