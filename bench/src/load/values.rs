//! Values of the command line of a load: rates, times and shares, as they are typed.

use std::{
    num::{NonZeroU32, NonZeroU64},
    str::FromStr,
    time::Duration,
};

use super::schedule::RATE_MAX;

/// Longest time that can be given: longer than any load should be, and short enough for all arithmetic in nanoseconds.
const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Weights with colons between them.
#[derive(Debug, Clone)]
pub struct DspShares(pub(super) Vec<NonZeroU32>);

impl FromStr for DspShares {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = |text: &str| {
            text.parse()
                .map_err(|_| format!("{text:?} is not a whole number from 1 to {}", u32::MAX))
        };
        text.split(':')
            .map(share)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

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

pub(super) fn parse_exponent(text: &str) -> Result<f64, String> {
    let exponent = text.parse().ok();
    exponent
        .filter(|exponent: &f64| exponent.is_finite() && *exponent >= 0.0)
        .ok_or_else(|| "not a number of 0 or more".to_owned())
}

pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "not a number from 0 to 1".to_owned())
}
