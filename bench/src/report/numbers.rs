//! Percentiles, and numbers a person can read.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A histogram of microseconds, exact to three digits.
#[must_use]
pub fn micros_histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are within the crate's range")
}

/// Percentiles of a duration, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Largest.
    pub max: u64,
}

impl Percentiles {
    /// The percentiles of a histogram of microseconds; `None` when it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        (!histogram.is_empty()).then(|| Self {
            mean: histogram.mean(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        })
    }

    /// One line: `p50 …  p90 …  p99 …  p99.9 …  max …`.
    #[must_use]
    pub fn line(&self) -> String {
        let [p50, p90, p99, p999, max] =
            [self.p50, self.p90, self.p99, self.p999, self.max].map(duration);
        format!("p50 {p50}  p90 {p90}  p99 {p99}  p99.9 {p999}  max {max}")
    }
}

/// Microseconds with the unit a person would choose.
#[must_use]
pub fn duration(micros: u64) -> String {
    let value = micros as f64;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => format!("{:.2} ms", value / 1e3),
        10_000..1_000_000 => format!("{:.1} ms", value / 1e3),
        _ => format!("{:.2} s", value / 1e6),
    }
}

/// A number with its thousands apart: `1 234 567`.
#[must_use]
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    grouped
}

/// A rate, rounded: `12 345/s`.
#[must_use]
pub fn rate(per_second: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "a float cast saturates")]
    let rounded = per_second.round() as u64;
    format!("{}/s", grouped(rounded))
}

/// `count` in each of `seconds`; 0 when no time passed.
#[must_use]
pub fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

/// Microseconds for each of `count`; 0 when there is none.
#[must_use]
pub fn micros_each(seconds: f64, count: u64) -> f64 {
    if count > 0 {
        seconds * 1e6 / count as f64
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0, 12, 123, 1_234, 1_234_567].map(grouped),
            ["0", "12", "123", "1 234", "1 234 567"]
        );
        assert_eq!(
            [7, 1_234, 56_789, 2_500_000].map(duration),
            ["7 µs", "1.23 ms", "56.8 ms", "2.50 s"]
        );
        assert_eq!(rate(1_234.5), "1 235/s");
    }
}
