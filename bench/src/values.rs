//! Parsers of command-line values: rates and durations.

use std::{num::NonZeroU64, time::Duration};

/// Maximum rate: one request per nanosecond.
pub(crate) const RATE_MAX: u64 = 1_000_000_000;

/// Maximum duration, for which arithmetic in nanoseconds does not overflow.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

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

/// Parses a duration such as `90s` or `2h 30m`, from `min` to 30 days.
///
/// # Errors
/// The text is not a duration within these bounds.
pub fn parse_time(text: &str, min: Duration) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (min..=TIME_MAX).contains(&time) {
        return Ok(time);
    }
    let [min, max] = [min, TIME_MAX].map(humantime::format_duration);
    Err(format!("expected {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_bounded() {
        let min = Duration::from_secs(3);
        assert_eq!(parse_time("3s", min), Ok(min));
        for text in ["0s", "2900ms", "31d", "100000000y", "soon"] {
            assert!(parse_time(text, min).is_err(), "{text}");
        }
    }
}
