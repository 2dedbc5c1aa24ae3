//! Checks of single values in a contracts file.

use proto::ids;
use regex::{Regex, RegexBuilder};

/// Maximum length of a name.
const NAME_CHARS_MAX: usize = 64;

/// Maximum memory of a compiled pattern, and of its cache in each thread.
const PATTERN_BYTES_MAX: usize = 64 << 10;

pub(super) fn compiled(pattern: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(pattern);
    builder
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "is too complex".to_owned(),
        // The lines before the last one show the position in the pattern.
        error => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            format!("invalid pattern: {}", reason.trim_start_matches("error: "))
        }
    })
}

pub(super) fn check_name(name: &str) -> Result<(), String> {
    let is_valid = name.chars().count() <= NAME_CHARS_MAX && ids::is_printable_name(name);
    let error = format!(
        "invalid name: use 1 to {NAME_CHARS_MAX} printable characters, without a space at either end"
    );
    check(is_valid, error)
}

/// Checks a text that a partner replaces with its id.
pub(super) fn check_uid_macro(text: &str) -> Result<(), String> {
    let is_valid = (1..=NAME_CHARS_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    let error = format!("use 1 to {NAME_CHARS_MAX} printable ASCII characters without spaces");
    check(is_valid, error)
}

pub(super) fn check(is_valid: bool, error: impl Into<String>) -> Result<(), String> {
    is_valid.then_some(()).ok_or_else(|| error.into())
}
