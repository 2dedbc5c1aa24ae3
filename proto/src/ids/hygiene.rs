//! Finds buyer uids that are not ids: macros that an ad server did not replace, and placeholders for a missing id.
//!
//! Template languages repeat and mix their delimiters: `[[UID]]`, `{$UID}`, `*|UID|*`. Therefore no list of them is complete, and
//! the rules are general: no id contains a bracket, a dollar, or more than one percent sign; and punctuation around a value does not
//! make a sentinel an id.
//!
//! An ordinary id costs one vectorized pass over its bytes and a few comparisons. Only a value with a character that macros use is
//! copied, without its escapes, and examined further; this takes linear time.

use serde::Deserialize;

/// Why a value is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flaw {
    /// A macro that was not replaced, such as `${USER_ID}`.
    Macro,
    /// A placeholder for a missing id, such as `null`.
    Sentinel,
}

/// Sentinels, matched case-insensitively. `-1`, and values of zeros only, are others.
const SENTINELS: [&str; 8] = [
    "null",
    "undefined",
    "none",
    "nil",
    "nan",
    "n/a",
    "object object",
    "object+object",
];

/// Published macros that look like an id.
const WORDS: [&str; 5] = [
    "BUYERUID",
    "NTV_USER_ID",
    "SspCookieUserId",
    "33XUSERID33X",
    "xxEMODO_IDxx",
];

/// Characters that macros use and no id, except for the braces of a GUID.
const SYNTAX: [char; 9] = ['$', '{', '}', '[', ']', '(', ')', '<', '>'];

/// Delimiters of macros which some ids contain too.
const DELIMITERS: [char; 11] = ['%', '#', '@', '*', '|', '!', '~', '^', '?', ':', '&'];

/// Delimiters that need no closing one before a macro in capitals.
const PREFIXES: [char; 7] = ['%', '#', '@', '!', '?', ':', '&'];

/// HTML escapes, the one of the ampersand first.
const ENTITIES: [(&str, &str); 6] = [
    ("&amp;", "&"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&apos;", "'"),
    ("&#39;", "'"),
];

/// The flaw of a buyer uid; `None` for an id. `macros` are additional macros that look like an id.
pub fn flaw(uid: &str, macros: &[String]) -> Option<Flaw> {
    // No branch per byte, so that the compiler vectorizes the loop.
    let has_mark = uid.bytes().fold(false, |found, byte| {
        let is_syntax = matches!(byte, b'$' | b'%' | b'{' | b'[' | b'(' | b'<');
        let is_closing = matches!(byte, b'}' | b']' | b')' | b'>');
        found | is_syntax | is_closing | (byte == b'&') | !byte.is_ascii()
    });
    let found = flaw_of_plain(uid, macros);
    if has_mark {
        return found.or_else(|| flaw_of_marked(uid, macros));
    }
    found
}

#[cold]
fn flaw_of_marked(uid: &str, macros: &[String]) -> Option<Flaw> {
    let text = unescaped(uid);
    let has_syntax = || text.contains(SYNTAX) && !is_guid_in_braces(&text);
    let is_macro = || has_syntax() || has_percent_signs(uid) || has_percent_signs(&text);
    flaw_of_plain(&text, macros).or_else(|| is_macro().then_some(Flaw::Macro))
}

/// Whether percent signs enclose the text or precede a letter (`%s`), or several others than of escapes are in it. One behind the
/// start may be an incomplete escape.
fn has_percent_signs(text: &str) -> bool {
    let (open, core, close) = parts(text);
    let is_escape = |at: usize| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|it| it.iter().all(u8::is_ascii_hexdigit))
    };
    let others = text.match_indices('%').filter(|it| !is_escape(it.0));
    open.contains('%') && (core.len() == 1 || close.contains('%')) || others.count() > 1
}

/// The text without percent and HTML escapes, however often it was escaped, and with the ASCII forms of full-width characters.
fn unescaped(text: &str) -> String {
    let hex = |digit: u8| char::from(digit).to_digit(16);
    let mut bytes = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        bytes.push(byte);
        while let [start @ .., b'%', high, low] = &bytes[..]
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
            && let Ok(decoded) = u8::try_from(16 * high + low)
        {
            bytes.truncate(start.len());
            bytes.push(decoded);
        }
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if text.contains('&') {
        for (entity, character) in ENTITIES {
            text = text.replace(entity, character);
        }
    }
    let ascii = |it: char| match u32::from(it) {
        code @ 0xff01..=0xff5e => char::from_u32(code - 0xfee0).unwrap_or(it),
        _ => it,
    };
    text.chars().map(ascii).collect()
}

/// The flaw of a value without escapes, apart from the characters that no id contains.
fn flaw_of_plain(text: &str, macros: &[String]) -> Option<Flaw> {
    let (open, core, close) = parts(text);
    if is_sentinel(open, core) {
        return Some(Flaw::Sentinel);
    }
    let is_known = WORDS.contains(&core) || macros.iter().any(|it| it == text);
    let is_macro = is_known || (!open.is_empty() && is_enclosed_name(open, core, close));
    is_macro.then_some(Flaw::Macro)
}

/// The characters before the first letter or digit (quotes, spaces, delimiters, invisible ones), the core, and those after the
/// last letter or digit.
fn parts(text: &str) -> (&str, &str, &str) {
    let after = text.trim_start_matches(is_outer);
    let core = after.trim_end_matches(is_outer);
    let open = &text[..text.len() - after.len()];
    (open, core, &after[core.len()..])
}

fn is_outer(character: char) -> bool {
    match character.is_ascii() {
        true => !character.is_ascii_alphanumeric(),
        false => is_blank(character),
    }
}

/// Whether the character is a quote, a space, or invisible.
fn is_blank(character: char) -> bool {
    match character {
        '"' | '\'' | '`' | '\\' | ' ' | '\u{ab}' | '\u{ad}' | '\u{b4}' | '\u{bb}' => true,
        '\u{180e}' | '\u{feff}' | '\u{200b}'..='\u{200f}' | '\u{2018}'..='\u{201f}' => true,
        '\u{202a}'..='\u{202e}' | '\u{2032}'..='\u{203a}' | '\u{2060}'..='\u{206f}' => true,
        '\u{3008}'..='\u{301f}' => true,
        _ => character.is_whitespace(),
    }
}

/// Whether the value is a sentinel. `open` are the characters before the `core`.
fn is_sentinel(open: &str, core: &str) -> bool {
    // Usually false at the first character.
    let is_zero = core.chars().all(|it| it == '0' || is_outer(it));
    if core.is_empty() {
        // Quotes, spaces and brackets only.
        return open.chars().all(|it| is_blank(it) || SYNTAX.contains(&it));
    }
    is_zero
        || (core == "1" && open.ends_with('-'))
        || SENTINELS.iter().any(|it| it.eq_ignore_ascii_case(core))
}

/// Whether a name between delimiters is a macro: in capitals between two equal delimiters or behind a prefix, in any case between
/// repeated delimiters. Digits make it an id.
fn is_enclosed_name(open: &str, core: &str, close: &str) -> bool {
    let is_of_name = |it: char| it.is_ascii_alphabetic() || "_.- ".contains(it);
    if core.len() < 2 || !core.chars().all(is_of_name) {
        return false;
    }
    if open.ends_with("__") && close.starts_with("__") {
        return true;
    }
    let delimiters = |text: &str| text.chars().filter(|it| DELIMITERS.contains(it)).count();
    let is_capital = !core.contains(|it: char| it.is_ascii_lowercase());
    match (delimiters(open), delimiters(close)) {
        (0, _) => false,
        (_, 0) => is_capital && open.contains(PREFIXES),
        (opening, closing) => is_capital || (opening > 1 && closing > 1),
    }
}

/// Whether the text is a GUID between braces: 32 hexadecimal digits, with or without hyphens. Quotes around it do not count.
fn is_guid_in_braces(text: &str) -> bool {
    let (open, core, close) = parts(text);
    let has_only = |text: &str, brace| text.chars().filter(|it| SYNTAX.contains(it)).eq([brace]);
    has_only(open, '{') && has_only(close, '}') && is_guid(core)
}

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

#[cfg(test)]
mod tests;
