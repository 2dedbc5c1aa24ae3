//! Finds buyer uids that are not ids: macros that an ad server did not replace, and placeholders for a missing id.
//!
//! Quotes and spaces around a value do not count. Any sequence of delimiters may enclose a macro or a sentinel, because
//! template languages repeat and mix them: `[[UID]]`, `{$UID}`, `*|UID|*`.
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
const SENTINELS: [&str; 8] = [
    "-1",
    "null",
    "undefined",
    "none",
    "nil",
    "nan",
    "n/a",
    "object object",
];

/// Published macros that look like an id.
const WORDS: [&str; 5] = [
    "BUYERUID",
    "NTV_USER_ID",
    "SspCookieUserId",
    "33XUSERID33X",
    "xxEMODO_IDxx",
];

/// Characters that may follow an opening delimiter, as in `<%= uid %>` and `{{.uid}}`.
const FILLERS: &str = ".=-+:/";

/// Delimiters that need no closing one before a macro in capitals.
const PREFIXES: [char; 4] = ['#', '@', '!', '?'];

const BRACKETS: [char; 4] = ['{', '[', '(', '<'];

/// The flaw of a buyer uid; `None` for an id. `macros` are additional macros that look like an id.
pub fn flaw(uid: &str, macros: &[String]) -> Option<Flaw> {
    let bytes = uid.as_bytes();
    // No branch per byte, so that the compiler vectorizes the loop.
    let has_mark = bytes.iter().fold(false, |found, byte| {
        found | matches!(byte, b'$' | b'{' | b'%' | b'[' | b'(' | b'<')
    });
    let is_outer = |byte: Option<&u8>| {
        byte.is_some_and(|byte| !byte.is_ascii_alphanumeric() && !b"-=+/.:,".contains(byte))
    };
    if has_mark || is_outer(bytes.first()) || is_outer(bytes.last()) {
        return flaw_of_marked(uid, macros);
    }
    flaw_of_plain(uid, macros)
}

#[cold]
fn flaw_of_marked(uid: &str, macros: &[String]) -> Option<Flaw> {
    flaw_of_enclosed(uid, macros).or_else(|| {
        uid.find('%')?;
        let (mut decoded, mut length) = ([0; BUYER_UID_BYTES_MAX], 0);
        for (target, byte) in decoded.iter_mut().zip(percent_decode(uid.as_bytes())) {
            *target = byte;
            length += 1;
        }
        flaw_of_enclosed(str::from_utf8(&decoded[..length]).ok()?, macros)
    })
}

/// The flaw of a value that is a sentinel, or a known macro that looks like an id.
fn flaw_of_plain(text: &str, macros: &[String]) -> Option<Flaw> {
    if is_sentinel(text) {
        Some(Flaw::Sentinel)
    } else if WORDS.contains(&text) || macros.iter().any(|it| it == text) {
        Some(Flaw::Macro)
    } else {
        None
    }
}

/// The flaw of a value that quotes, spaces and delimiters may enclose.
fn flaw_of_enclosed(uid: &str, macros: &[String]) -> Option<Flaw> {
    let text = uid.trim_matches(is_blank);
    if text.is_empty() {
        return Some(Flaw::Sentinel);
    }
    let (open, inner, close) = enclosed(text);
    let mut forms = [uid, text, inner].into_iter();
    let plain = forms.find_map(|it| flaw_of_plain(it, macros));
    let is_macro = || {
        let has_form = is_enclosed_macro(open, inner, close) || contains_macro(text);
        (has_form && !is_guid(inner)) || text == "%s" || is_between_underscores(text)
    };
    plain.or_else(|| is_macro().then_some(Flaw::Macro))
}

fn is_sentinel(text: &str) -> bool {
    let mut digits = text.bytes().filter(|&byte| byte != b'-');
    // Usually false at the first character.
    let is_zero = digits.all(|byte| byte == b'0') && (is_guid(text) || !text.contains('-'));
    (is_zero && !text.is_empty()) || SENTINELS.iter().any(|it| it.eq_ignore_ascii_case(text))
}

/// Whether the text is 32 hexadecimal digits, with or without the hyphens of a GUID.
fn is_guid(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match text.len() {
        32 => is_hex(text),
        36 => {
            let parts = text.split('-').map(|it| (it.len(), is_hex(it)));
            parts.eq([8, 4, 4, 4, 12].map(|length| (length, true)))
        }
        _ => false,
    }
}

/// The text before, between and after the outer delimiters, quotes and spaces of a text.
fn enclosed(text: &str) -> (&str, &str, &str) {
    let (open, rest) = split(text, is_outer);
    let inner = rest.trim_end_matches(is_outer);
    (open, inner, &rest[inner.len()..])
}

/// Splits after the first characters of this kind.
fn split(text: &str, is_kind: fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.len() - text.trim_start_matches(is_kind).len())
}

/// Whether a text between these delimiters is a macro. With other delimiters, it may be an id.
fn is_enclosed_macro(open: &str, inner: &str, close: &str) -> bool {
    let name = inner.trim_matches(|it| is_outer(it) || FILLERS.contains(it));
    let [opening, closing] = [open, close].map(|run| delimiters(run).count());
    let is_pair = is_pair(open, close);
    // The brackets of a template language may enclose more than a name, such as `{{ uid | upper }}`.
    let is_template = opening > 1 && name.starts_with(char::is_alphabetic);
    (is_pair && open.contains(BRACKETS) && (is_name(name) || is_template))
        || (is_pair && opening > 1 && closing > 1 && is_name(name))
        || (open.starts_with('$') && is_name(name))
        || (is_capital_name(name) && (is_pair || (closing == 0 && open.contains(PREFIXES))))
}

/// Whether a macro between at least two brackets or percent signs is anywhere in the text. Linear, because the search continues
/// behind each name.
fn contains_macro(text: &str) -> bool {
    let mut rest = text;
    while let Some(at) = rest.find(is_delimiter) {
        let (open, after) = split(&rest[at..], |it| is_outer(it) || FILLERS.contains(it));
        let (name, after) = split(after, is_of_name);
        let (close, _) = split(after, is_outer);
        let is_macro = delimiters(open).count() > 1 && is_pair(open, close) && is_name(name.trim());
        if is_macro && open.contains(['{', '[', '(', '<', '%']) {
            return true;
        }
        rest = after;
    }
    false
}

/// Whether the outermost or the innermost delimiters belong together.
fn is_pair(open: &str, close: &str) -> bool {
    let [mut open, mut close] = [open, close].map(delimiters);
    let is_pair = |open: Option<char>, close: Option<char>| {
        let closing = open.map(|open| match open {
            '{' => '}',
            '[' => ']',
            '(' => ')',
            '<' => '>',
            other => other,
        });
        closing.is_some() && closing == close
    };
    is_pair(open.clone().next(), close.clone().next_back())
        || is_pair(open.next_back(), close.next())
}

fn delimiters(text: &str) -> impl DoubleEndedIterator<Item = char> + Clone {
    text.chars().filter(|&it| is_delimiter(it))
}

fn is_between_underscores(text: &str) -> bool {
    let name = text.strip_prefix("__").and_then(|it| it.strip_suffix("__"));
    name.is_some_and(is_capital_name)
}

fn is_delimiter(character: char) -> bool {
    let brackets = matches!(character, '{' | '}' | '[' | ']' | '(' | ')' | '<' | '>');
    let others = matches!(
        character,
        '$' | '%' | '#' | '@' | '*' | '|' | '!' | '~' | '^' | '?'
    );
    brackets || others
}

/// Whether the character is a quote, a space, or invisible.
fn is_blank(character: char) -> bool {
    match character {
        '"' | '\'' | '`' | '\\' | ' ' => true,
        '\u{ab}' | '\u{b4}' | '\u{bb}' | '\u{feff}' => true,
        '\u{200b}' | '\u{2018}'..='\u{201f}' | '\u{2039}' | '\u{203a}' => true,
        _ => !character.is_ascii() && character.is_whitespace(),
    }
}

fn is_outer(character: char) -> bool {
    !character.is_ascii_alphanumeric() && (is_delimiter(character) || is_blank(character))
}

fn is_name(text: &str) -> bool {
    let is_start = |it: char| it.is_ascii_alphabetic() || it == '_';
    text.starts_with(is_start) && text.chars().all(is_of_name)
}

fn is_of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_.: -".contains(character)
}

/// Whether the text is a capital and at least two more capitals, digits or underscores.
fn is_capital_name(text: &str) -> bool {
    let is_allowed = |byte: &u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
    let bytes = text.as_bytes();
    matches!(bytes, [b'A'..=b'Z', _, _, ..]) && bytes.iter().all(is_allowed)
}

#[cfg(test)]
mod tests;
