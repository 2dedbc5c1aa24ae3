//! Values of the command line of a load: rates, factors and shares, as they are typed.

use std::{
    num::{NonZeroU32, NonZeroU64},
    str::FromStr,
    time::Duration,
};

use super::profile::RATE_MAX;

/// Longest time that can be given: longer than any load should be, and short enough for all arithmetic in nanoseconds.
pub(super) const TIME_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Shorter days have minutes that a rate cannot be told from in.
const DAY_MIN: Duration = Duration::from_secs(1);

/// Rates with colons between them.
#[derive(Debug, Clone)]
pub struct Ramp(pub(super) Vec<NonZeroU64>);

/// The lowest and the highest rate of a day.
#[derive(Debug, Clone, Copy)]
pub struct Daily {
    pub(super) low: NonZeroU64,
    pub(super) peak: NonZeroU64,
}

/// Weights with colons between them.
#[derive(Debug, Clone)]
pub struct DspShares(pub(super) Vec<NonZeroU32>);

impl FromStr for Ramp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(':')
            .map(parse_rate)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl FromStr for Daily {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (low, peak) = text
            .split_once(':')
            .ok_or("not two rates with a colon between them")?;
        let (low, peak) = (parse_rate(low)?, parse_rate(peak)?);
        if low > peak {
            return Err("the first rate is the lower one".to_owned());
        }
        Ok(Self { low, peak })
    }
}

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
/// When it is not a whole number from 1 to [`RATE_MAX`].
pub fn parse_rate(text: &str) -> Result<NonZeroU64, String> {
    text.parse()
        .ok()
        .filter(|rate: &NonZeroU64| rate.get() <= RATE_MAX)
        .ok_or_else(|| format!("{text:?} is not a whole number from 1 to {RATE_MAX}"))
}

/// A time from 1 ms to [`TIME_MAX`].
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(1) {
        return Err("it is shorter than a millisecond".to_owned());
    }
    if time > TIME_MAX {
        return Err("it is longer than 30 days".to_owned());
    }
    Ok(time)
}

pub(super) fn parse_day(text: &str) -> Result<Duration, String> {
    let day = parse_time(text)?;
    if day < DAY_MIN {
        return Err("a day takes a second or more".to_owned());
    }
    Ok(day)
}

pub(super) fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.strip_suffix('x').unwrap_or(text).parse().ok();
    factor
        .filter(|factor: &f64| factor.is_finite() && *factor > 0.0)
        .ok_or_else(|| "not a factor above 0, such as 5x".to_owned())
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
