//! Values of command lines: rates, times and shares, as they are typed.

use std::{num::NonZeroU64, time::Duration};

/// Highest rate: one request for each nanosecond.
pub(crate) const RATE_MAX: u64 = 1_000_000_000;

/// Longer than anything should last, and short enough for all arithmetic in nanoseconds.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// A rate a second.
///
/// # Errors
/// When it is not a whole number from 1 to 1,000,000,000.
pub fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    text.parse()
        .ok()
        .filter(|rate: &NonZeroU64| rate.get() <= RATE_MAX)
        .ok_or_else(|| format!("{text:?} is not a whole number from 1 to {RATE_MAX}"))
}

/// A time, `90s` or `2h 30m`, from `min` to 30 days.
///
/// # Errors
/// When it is not a time, or out of these bounds.
pub fn parse_time(text: &str, min: Duration) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (min..=TIME_MAX).contains(&time) {
        return Ok(time);
    }
    let [min, max] = [min, TIME_MAX].map(humantime::format_duration);
    Err(format!("it is not from {min} to {max}"))
}

/// A share, from 0 to 1.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "not a number from 0 to 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        let min = Duration::from_secs(3);
        assert_eq!(parse_time("3s", min), Ok(min));
        for text in ["0s", "2900ms", "31d", "100000000y", "soon"] {
            assert!(parse_time(text, min).is_err(), "{text}");
        }
    }
}
