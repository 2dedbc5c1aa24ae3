//! Rates, times and sizes in text form: `300/s`, `1000/1h`, `50 000/day`, `250ms`, `64MiB`.
//!
//! A rate is an exact fraction: 300/s is 300 per 1,000,000,000 ns, not one per 3,333,333 ns, which would be 300.00003/s.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// Maximum number of requests in a rate, burst or limit: 10^12.
pub const REQUESTS_MAX: u64 = 1_000_000_000_000;

/// Maximum period of a rate or window: ten years.
pub const PERIOD_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

const SECOND: u64 = 1_000_000_000;

/// A number of requests per period, in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u64, u64)", try_from = "(u64, u64)")]
pub struct Rate {
    requests: u64,
    nanos: u64,
    /// Before reduction to lowest terms: for `1000/1h`, a window algorithm counts 1000 per hour, not one per 3.6 s.
    written: (u64, u64),
}

/// The error of an invalid rate, time, number or size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RateError(String);

impl Rate {
    /// A rate of `requests` per period.
    ///
    /// # Errors
    /// If either is 0 or exceeds [`REQUESTS_MAX`] or [`PERIOD_MAX`].
    pub fn new(requests: u64, per: Duration) -> Result<Self, RateError> {
        let requests = in_range("number of requests", requests, REQUESTS_MAX)?;
        let nanos = period(per)?;
        let divisor = gcd(requests, nanos);
        Ok(Self {
            requests: requests / divisor,
            nanos: nanos / divisor,
            written: (requests, nanos),
        })
    }

    /// The numerator, in lowest terms.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The denominator in nanoseconds, in lowest terms.
    pub fn nanos(&self) -> u64 {
        self.nanos
    }

    /// Requests and nanoseconds before reduction to lowest terms.
    pub fn written(&self) -> (u64, u64) {
        self.written
    }

    /// This rate divided by `divisor`.
    ///
    /// # Errors
    /// If `divisor` is 0, or the result is too small.
    pub fn divided(&self, divisor: u64) -> Result<Self, RateError> {
        let (requests, nanos) = self.written;
        let divisor = in_range("divisor", divisor, REQUESTS_MAX)?;
        if requests.is_multiple_of(divisor) {
            return Self::new(requests / divisor, Duration::from_nanos(nanos));
        }
        let nanos = nanos.saturating_mul(divisor);
        Self::new(requests, Duration::from_nanos(nanos))
    }

    /// A share of this rate in millionths, at least one request per [`PERIOD_MAX`]. Rounded down if the exact fraction does not fit.
    pub(crate) fn share(&self, millionths: u64) -> Self {
        if millionths == 0 {
            return Self::new(1, PERIOD_MAX).expect("ten years fit");
        }
        let nanos_max = PERIOD_MAX.as_nanos();
        let requests = u128::from(self.requests) * u128::from(millionths);
        let nanos = u128::from(self.nanos) * 1_000_000;
        let fits = |requests: u128, nanos: u128| {
            let (requests, nanos) = (u64::try_from(requests).ok()?, u64::try_from(nanos).ok()?);
            let divisor = gcd(requests, nanos);
            Self::new(requests / divisor, Duration::from_nanos(nanos / divisor)).ok()
        };
        let one = fits(1, nanos.div_ceil(requests).min(nanos_max));
        fits(requests, nanos)
            .or(one)
            .expect("one request within ten years")
    }

    /// Number of requests in `nanos` nanoseconds, rounded down.
    pub fn requests_in(&self, nanos: u64) -> u64 {
        let requests = u128::from(nanos) * u128::from(self.requests) / u128::from(self.nanos);
        u64::try_from(requests).unwrap_or(u64::MAX)
    }

    /// Nanoseconds for `requests` requests, rounded up.
    pub fn nanos_of(&self, requests: u64) -> u64 {
        let nanos = u128::from(requests) * u128::from(self.nanos);
        u64::try_from(nanos.div_ceil(u128::from(self.requests))).unwrap_or(u64::MAX)
    }
}

impl From<Rate> for (u64, u64) {
    fn from(rate: Rate) -> Self {
        rate.written
    }
}

impl TryFrom<(u64, u64)> for Rate {
    type Error = RateError;

    fn try_from((requests, nanos): (u64, u64)) -> Result<Self, RateError> {
        Self::new(requests, Duration::from_nanos(nanos))
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let form = "write REQUESTS/TIME, such as 300/s, 1000/1h or 50 000/day";
        let error = || RateError(format!("invalid rate `{text}`: {form}"));
        let (requests, per) = text.split_once('/').ok_or_else(error)?;
        let Count(requests) = requests.parse().map_err(|_| error())?;
        let per = per.trim();
        let has_number = per.starts_with(|first: char| first.is_ascii_digit());
        let one = if has_number { "" } else { "1" };
        let per = humantime::parse_duration(&format!("{one}{per}")).map_err(|_| error())?;
        Self::new(requests, per)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, nanos) = self.written;
        let time = Time(nanos).to_string();
        let unit = time.strip_prefix('1');
        let unit = unit.filter(|it| it.chars().all(char::is_alphabetic));
        write!(formatter, "{requests}/{}", unit.unwrap_or(&time))
    }
}

/// A whole number; digits may be grouped by spaces or underscores.
#[derive(Debug, Clone, Copy)]
pub struct Count(pub u64);

impl FromStr for Count {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let is_space = |it: char| matches!(it, ' ' | '_' | '\u{a0}' | '\u{202f}');
        let digits = text.trim().replace(is_space, "");
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| is_number);
        number
            .map(Self)
            .ok_or_else(|| RateError(format!("invalid number `{text}`: expected a whole number")))
    }
}

/// A duration in nanoseconds.
///
/// # Errors
/// If it is 0 or exceeds [`PERIOD_MAX`].
pub(crate) fn period(time: Duration) -> Result<u64, RateError> {
    let max = u64::try_from(PERIOD_MAX.as_nanos()).expect("ten years fit");
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    in_range("time in nanoseconds", nanos, max)
}

pub(crate) fn in_range(what: &str, value: u64, max: u64) -> Result<u64, RateError> {
    if value == 0 || value > max {
        return Err(RateError(format!("invalid {what} {value}: use 1 to {max}")));
    }
    Ok(value)
}

/// The greatest common divisor.
pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A string or a whole number in a limits file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a whole number")]
enum Scalar {
    Number(i64),
    Text(String),
}

/// A value that is parsed from a string or a whole number.
pub(crate) struct Parsed<T>(pub(crate) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = match Scalar::deserialize(from)? {
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text,
        };
        text.parse().map(Self).map_err(Error::custom)
    }
}

/// A time in nanoseconds, with a text form such as `1.5s`, `250ms` or `1h`.
#[derive(Debug, Clone, Copy)]
pub struct Time(pub u64);

impl From<Duration> for Time {
    /// Saturates at 584 years.
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Time {
    type Err = RateError;

    /// Parses a time such as `250ms`, `1 h` or `2 days`, from 1 ns to [`PERIOD_MAX`].
    fn from_str(text: &str) -> Result<Self, RateError> {
        let form = "write a number and ns, us, ms, s, min, h or day";
        let time = humantime::parse_duration(text);
        let time = time.map_err(|_| RateError(format!("invalid time `{text}`: {form}")))?;
        period(time).map(Self)
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        Self::from_nanos(time.0)
    }
}

impl fmt::Display for Time {
    /// In the format of settings, such as `1h 30m` or `14d`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 86_400 * SECOND;
        if self.0 >= DAY && self.0.is_multiple_of(DAY) {
            return write!(formatter, "{}d", self.0 / DAY);
        }
        let time = humantime::format_duration(Duration::from_nanos(self.0));
        write!(formatter, "{time}")
    }
}

/// A number of bytes, parsed from text such as `64MiB`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = RateError;

    /// Parses a size such as `65536`, `64KiB` or `16 GiB`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let form = "write a whole number, without a unit or with KiB, MiB or GiB";
        let error = || RateError(format!("invalid size `{text}`: {form}"));
        let end = text.find(|it: char| it.is_ascii_alphabetic());
        let (number, name) = text.split_at(end.unwrap_or(text.len()));
        let unit = match name.trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(error()),
        };
        let Count(number) = number.parse().map_err(|_| error())?;
        number.checked_mul(unit).map(Self).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, requests: u64, nanos: u64, shown: &str) {
        let rate: Rate = text.parse().unwrap();
        assert_eq!((rate.requests(), rate.nanos()), (requests, nanos), "{text}");
        assert_eq!(rate.to_string(), shown);
        assert_eq!(shown.parse::<Rate>().unwrap(), rate);
    }

    #[test]
    fn rates_are_parsed_with_units_and_grouped_digits() {
        check("300/s", 3, 10_000_000, "300/s");
        check("1000/1h", 1, 3_600_000_000, "1000/h");
        check("50 000/day", 1, 1_728_000_000, "50000/d");
        check("1_000 / 2 days", 1, 172_800_000_000, "1000/2d");
        check("42/60s", 7, 10 * SECOND, "42/m");
        check("10/250ms", 1, 25_000_000, "10/250ms");
        check("1/day", 1, 86_400 * SECOND, "1/d");
        check("10/2.5s", 1, 250_000_000, "10/2s 500ms");
        check("1/0.000000001s", 1, 1, "1/ns");
    }

    #[test]
    fn malformed_rates_are_rejected() {
        for text in [
            "", "300", "300/", "/s", "3.5/s", "-1/s", "300/x", "300/5", "0/s", "1/0s", "+3/s",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("invalid"), "{text}: {error}");
        }
        assert!("1000000000001/s".parse::<Rate>().is_err());
        assert!("1/11000days".parse::<Rate>().is_err());
    }

    #[test]
    fn times_are_displayed_like_settings() {
        for (nanos, shown) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1us 500ns"),
            (250_000_000, "250ms"),
            (3_333_334, "3ms 333us 334ns"),
            (5_400 * SECOND, "1h 30m"),
            (90 * SECOND, "1m 30s"),
            (481_475_000_000, "8m 1s 475ms"),
            (60 * SECOND, "1m"),
            (2 * 86_400 * SECOND, "2d"),
        ] {
            assert_eq!(Time(nanos).to_string(), shown);
        }
    }

    #[test]
    fn sizes_are_parsed_in_binary_units() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("64MiB", 64 << 20),
            (" 64 MiB ", 64 << 20),
            ("1536 MiB", 3 << 29),
            ("1 000 B", 1_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap().0, bytes, "{text}");
        }
        for text in [
            "",
            "x",
            "64MB",
            "-1",
            "1e9",
            "1.5GiB",
            "1.5",
            "MiB",
            "18000000000GiB",
            "1.2.3MiB",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
