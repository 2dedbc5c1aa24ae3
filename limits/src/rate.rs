//! Rates, times and sizes as people write them: `300/s`, `1000/1h`, `50 000/day`, `250ms`, `64MiB`.
//!
//! A rate is a fraction of whole numbers and stays one: 300 a second are 300 per 1,000,000,000 ns, never one each
//! 3,333,333 ns, which would be 300.00003 a second.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error};

/// Most requests that a rate, a burst or a limit may name: a million millions.
pub const REQUESTS_MAX: u64 = 1_000_000_000_000;

/// Longest time that a rate or a window may name: ten years.
pub const PERIOD_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

const SECOND: u64 = 1_000_000_000;

/// So many requests in so long a time, in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u64, u64)", try_from = "(u64, u64)")]
pub struct Rate {
    requests: u64,
    nanos: u64,
    /// As it was written: `1000/1h` and `1000/3600s` are one rate, but not one text.
    written: (u64, u64),
}

/// Why a text or a number is not a rate, a time, a count or a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The text has another form.
    #[error("`{0}` is not a rate: write requests/time, as in 300/s, 1000/1h or 50 000/day")]
    Rate(String),
    /// The text has another form.
    #[error("`{0}` is not a time: write a number and ns, us, ms, s, min, h or day")]
    Time(String),
    /// The text has another form.
    #[error("`{0}` is not a whole number")]
    Count(String),
    /// The text has another form.
    #[error("`{0}` is not a number of bytes: write a whole number, alone or with KiB, MiB or GiB")]
    Bytes(String),
    /// A zero, or more than is allowed.
    #[error("{what} of {value} is not allowed: 1 to {most}")]
    Range {
        /// What has this value.
        what: &'static str,
        /// The value.
        value: u64,
        /// The largest that is allowed.
        most: u64,
    },
}

impl Rate {
    /// So many requests in so long a time.
    ///
    /// # Errors
    /// When either is zero, or more than [`REQUESTS_MAX`] or [`PERIOD_MAX`].
    pub fn new(requests: u64, per: Duration) -> Result<Self, RateError> {
        let requests = in_range("a number of requests", requests, REQUESTS_MAX)?;
        let nanos = period(per)?;
        let divisor = gcd(requests, nanos);
        Ok(Self {
            requests: requests / divisor,
            nanos: nanos / divisor,
            written: (requests, nanos),
        })
    }

    /// The numerator, in lowest terms.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The denominator in nanoseconds, in lowest terms.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.nanos
    }

    /// The requests and the nanoseconds as they were given.
    #[must_use]
    pub fn written(&self) -> (u64, u64) {
        self.written
    }

    /// One of so many equal parts of it.
    ///
    /// # Errors
    /// When it is not a part, or too small a one.
    pub fn divided(&self, parts: u64) -> Result<Self, RateError> {
        let (requests, nanos) = self.written;
        let parts = in_range("a number of parts", parts, REQUESTS_MAX)?;
        if requests.is_multiple_of(parts) {
            return Self::new(requests / parts, Duration::from_nanos(nanos));
        }
        Self::new(requests, Duration::from_nanos(nanos.saturating_mul(parts)))
    }

    /// So many millionths of it; rounded down where it would be slower than one request in [`PERIOD_MAX`], or its numbers too large.
    pub(crate) fn share(&self, millionths: u64) -> Self {
        if millionths == 0 {
            return Self::new(1, PERIOD_MAX).expect("ten years fit");
        }
        let most = u64::try_from(PERIOD_MAX.as_nanos()).expect("ten years fit");
        let requests = u128::from(self.requests) * u128::from(millionths);
        let nanos = u128::from(self.nanos) * 1_000_000;
        let fits = |requests: u128, nanos: u128| {
            let (requests, nanos) = (u64::try_from(requests).ok()?, u64::try_from(nanos).ok()?);
            let divisor = gcd(requests, nanos);
            Self::new(requests / divisor, Duration::from_nanos(nanos / divisor)).ok()
        };
        let one = fits(1, nanos.div_ceil(requests).min(most.into()));
        fits(requests, nanos)
            .or(one)
            .expect("one request within ten years")
    }

    /// How many requests fit into so long a time, rounded down.
    #[must_use]
    pub fn requests_in(&self, nanos: u64) -> u64 {
        let requests = u128::from(nanos) * u128::from(self.requests) / u128::from(self.nanos);
        u64::try_from(requests).unwrap_or(u64::MAX)
    }

    /// How many nanoseconds so many requests take, rounded up.
    #[must_use]
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
        let wrong = || RateError::Rate(text.to_owned());
        let (requests, per) = text.split_once('/').ok_or_else(wrong)?;
        let Count(requests) = requests.parse().map_err(|_| wrong())?;
        let per = per.trim();
        let per = if per.starts_with(|first: char| first.is_ascii_digit()) {
            per.parse::<Time>().map_err(|_| wrong())?.into()
        } else {
            Duration::from_nanos(unit(per).ok_or_else(wrong)?)
        };
        Self::new(requests, per)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, nanos) = self.written;
        write!(formatter, "{requests}/{}", Time(nanos).short())
    }
}

/// A whole number of requests; digits may be grouped by spaces or underscores.
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
            .ok_or_else(|| RateError::Count(text.to_owned()))
    }
}

/// A number that may have a fraction, times a unit; `None` when the product is not whole.
fn times(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.trim().split_once('.').unwrap_or((number, "0"));
    let places = 10_u64.checked_pow(u32::try_from(fraction.trim().len()).ok()?)?;
    let [whole, fraction] = [whole, fraction].map(|part| part.parse::<Count>().ok());
    let fraction = u128::from(fraction?.0) * u128::from(unit);
    let is_whole = fraction.is_multiple_of(places.into());
    let fraction = u64::try_from(fraction / u128::from(places)).ok();
    let fraction = fraction.filter(|_| is_whole)?;
    whole?.0.checked_mul(unit)?.checked_add(fraction)
}

fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hour" | "hours" => 3_600 * SECOND,
        "d" | "day" | "days" => 86_400 * SECOND,
        _ => return None,
    })
}

/// A time in nanoseconds that is neither zero nor beyond [`PERIOD_MAX`].
pub(crate) fn period(time: Duration) -> Result<u64, RateError> {
    let most = u64::try_from(PERIOD_MAX.as_nanos()).expect("ten years fit");
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    in_range("a time in nanoseconds", nanos, most)
}

pub(crate) fn in_range(what: &'static str, value: u64, most: u64) -> Result<u64, RateError> {
    if value == 0 || value > most {
        return Err(RateError::Range { what, value, most });
    }
    Ok(value)
}

/// The greatest common divisor.
#[must_use]
pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A text of a file, or a whole number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a whole number")]
enum Word {
    Number(i64),
    Text(String),
}

impl fmt::Display for Word {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => formatter.write_str(text),
        }
    }
}

/// What a file has as a text, or as a whole number.
pub(crate) struct Parsed<T>(pub(crate) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = Word::deserialize(from)?.to_string();
        word.parse().map(Self).map_err(Error::custom)
    }
}

/// Nanoseconds as people write them: `1.5s`, `250ms`, `1h`.
#[derive(Debug, Clone, Copy)]
pub struct Time(pub u64);

const UNITS: [(u64, &str); 6] = [
    (86_400 * SECOND, "day"),
    (3_600 * SECOND, "h"),
    (60 * SECOND, "min"),
    (SECOND, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
];

impl Time {
    /// In the largest unit of which it is a whole number.
    fn exact(self) -> String {
        let whole = |&&(unit, _): &&(u64, &str)| self.0 >= unit && self.0.is_multiple_of(unit);
        let (unit, name) = UNITS.iter().find(whole).copied().unwrap_or((1, "ns"));
        let plural = if name == "day" && self.0 != unit {
            "s"
        } else {
            ""
        };
        format!("{}{name}{plural}", self.0 / unit)
    }

    /// As the time of a rate: `s` instead of `1s`.
    fn short(self) -> String {
        let text = self.exact();
        match text.strip_prefix('1') {
            Some(unit) if unit.starts_with(|it: char| it.is_alphabetic()) => unit.to_owned(),
            _ => text,
        }
    }
}

impl From<Duration> for Time {
    /// 584 years stand for what is longer.
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Time {
    type Err = RateError;

    /// A time such as `250ms`, `1 h` or `2 days`, in whole nanoseconds; neither zero nor longer than [`PERIOD_MAX`].
    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError::Time(text.to_owned());
        let text = text.trim();
        let end = text.find(|it: char| it.is_ascii_alphabetic() || it == 'µ');
        let (number, name) = text.split_at(end.ok_or_else(wrong)?);
        let unit = unit(name.trim()).ok_or_else(wrong)?;
        let nanos = times(number, unit).ok_or_else(wrong)?;
        period(Duration::from_nanos(nanos)).map(Self)
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Self {
        Self::from_nanos(time.0)
    }
}

impl fmt::Display for Time {
    /// Whole minutes, hours and days as such; all else with three digits after the point, at most, and not rounded up.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= SECOND && self.0.is_multiple_of(SECOND) {
            return formatter.write_str(&self.exact());
        }
        match UNITS[3..].iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => {
                let thousandths = self.0 / (unit / 1_000);
                let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
                let text = text.trim_end_matches('0').trim_end_matches('.');
                write!(formatter, "{text}{name}")
            }
            None => write!(formatter, "{}ns", self.0),
        }
    }
}

/// A number of bytes as people write it: `64MiB`, `1000 bytes`.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = RateError;

    /// A whole number of bytes or of a unit, such as `65536`, `64KiB` or `16 GiB`.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let wrong = || RateError::Bytes(text.to_owned());
        let end = text.find(|it: char| it.is_ascii_alphabetic());
        let (number, name) = text.split_at(end.unwrap_or(text.len()));
        let unit = match name.trim() {
            "" | "B" => 1,
            name => {
                let size = SIZES.iter().find(|(_, it)| *it == name);
                size.ok_or_else(wrong)?.0
            }
        };
        let Count(number) = number.parse().map_err(|_| wrong())?;
        number.checked_mul(unit).map(Self).ok_or_else(wrong)
    }
}

const SIZES: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

impl fmt::Display for Bytes {
    /// In the largest unit of which it is a whole number.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(unit, _): &&(u64, &str)| self.0 >= *unit && self.0.is_multiple_of(*unit);
        match SIZES.iter().find(whole) {
            Some((unit, name)) => write!(formatter, "{}{name}", self.0 / unit),
            None => write!(formatter, "{} bytes", self.0),
        }
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
    fn rates_are_read_as_people_write_them() {
        check("300/s", 3, 10_000_000, "300/s");
        check("1000/1h", 1, 3_600_000_000, "1000/h");
        check("50 000/day", 1, 1_728_000_000, "50000/day");
        check("1_000 / 2 days", 1, 172_800_000_000, "1000/2days");
        check("42/60s", 7, 10 * SECOND, "42/min");
        check("10/250ms", 1, 25_000_000, "10/250ms");
        check("1/day", 1, 86_400 * SECOND, "1/day");
        check("10/2.5s", 1, 250_000_000, "10/2500ms");
        check("1/0.000000001s", 1, 1, "1/ns");
    }

    #[test]
    fn what_is_not_a_rate_is_refused() {
        for text in [
            "", "300", "300/", "/s", "3.5/s", "-1/s", "300/x", "300/5", "0/s", "1/0s", "+3/s",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("not"), "{text}: {error}");
        }
        assert!("1000000000001/s".parse::<Rate>().is_err());
        assert!("1/11000days".parse::<Rate>().is_err());
    }

    #[test]
    fn times_are_shown_without_rounding_up() {
        for (nanos, shown) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_500, "1.5us"),
            (250_000_000, "250ms"),
            (3_333_334, "3.333ms"),
            (1_999_999_999, "1.999s"),
            (90 * SECOND, "90s"),
            (481_475_000_000, "481.475s"),
            (60 * SECOND, "1min"),
            (2 * 86_400 * SECOND, "2days"),
        ] {
            assert_eq!(Time(nanos).to_string(), shown);
        }
    }

    #[test]
    fn sizes_are_read_and_shown_in_binary_units() {
        for (text, bytes, shown) in [
            ("65536", 65_536, "64KiB"),
            ("64MiB", 64 << 20, "64MiB"),
            (" 64 MiB ", 64 << 20, "64MiB"),
            ("1536 MiB", 3 << 29, "1536MiB"),
            ("1 000 B", 1_000, "1000 bytes"),
            ("0", 0, "0 bytes"),
        ] {
            assert_eq!(text.parse::<Bytes>().unwrap().0, bytes, "{text}");
            assert_eq!(Bytes(bytes).to_string(), shown);
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
