//! Bounds and parsers of command-line values.

use std::{num::NonZeroU64, time::Duration};

/// Maximum rate: one request per nanosecond.
pub(crate) const RATE_MAX: u64 = 1_000_000_000;

/// Maximum duration, for which arithmetic in nanoseconds does not overflow.
pub const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Parses a rate per second.
///
/// # Errors
/// The text is not an integer from 1 to 1,000,000,000.
pub fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    text.parse()
        .ok()
        .filter(|rate: &NonZeroU64| rate.get() <= RATE_MAX)
        .ok_or_else(|| format!("{text:?} is not an integer from 1 to {RATE_MAX}"))
}
