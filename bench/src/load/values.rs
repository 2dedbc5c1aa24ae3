//! Values of command lines: rates, times and shares, as they are typed.

use std::{num::NonZeroU64, time::Duration};

use super::schedule::RATE_MAX;

/// Longest time that can be given: longer than any load should be, and short enough for all arithmetic in nanoseconds.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A rate a second, as it is typed.
///
/// # Errors
/// When it is not a whole number from 1 to 1,000,000,000.
pub fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    text.parse()
        .ok()
        .filter(|rate: &NonZeroU64| rate.get() <= RATE_MAX)
        .ok_or_else(|| format!("{text:?} is not a whole number from 1 to {RATE_MAX}"))
}

/// A time from 1 ms to [`TIME_MAX`].
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(1) {
        return Err("it is shorter than a millisecond".to_owned());
    }
    if time > TIME_MAX {
        return Err("it is longer than 30 days".to_owned());
    }
    Ok(time)
}

pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "not a number from 0 to 1".to_owned())
}
