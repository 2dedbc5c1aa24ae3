//! Parsers of values in the applications file.

use std::time::Duration;

use regex::bytes::Regex;
use runtime::settings;
use serde::{Deserialize as _, Deserializer, de};
use url::Host;

/// Maximum bytes of a response body.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;

/// Deserializes a time like `350ms`.
///
/// # Errors
/// When the text is not a time.
pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parse = settings::time(Duration::ZERO..=settings::TIME_MAX);
    parse(&text).map_err(de::Error::custom)
}

/// Deserializes a time that may be missing.
pub(crate) fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// Deserializes host names in the form used in URLs: lower case, with non-ASCII characters encoded.
pub(crate) fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Host>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| {
        let host = Host::parse(text).ok().filter(|_| !text.contains('*'));
        host.ok_or_else(|| de::Error::custom(format!("{text:?}: use a host without port or *")))
    };
    texts.iter().map(parse).collect()
}

/// Deserializes the maximum size of a body.
pub(crate) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let text = String::deserialize(deserializer)?;
    settings::size(1..=BODY_BYTES_MAX)(&text).map_err(de::Error::custom)
}

/// Deserializes regular expressions.
pub(crate) fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Regex>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parsed = texts.iter().map(|it| Regex::new(it));
    parsed.collect::<Result<_, _>>().map_err(de::Error::custom)
}
