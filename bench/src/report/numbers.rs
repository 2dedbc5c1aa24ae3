//! Histograms, percentiles and averages.

use hdrhistogram::Histogram;
use serde::Serialize;
use testkit::numbers::duration;

/// A histogram of microseconds with three significant digits.
#[derive(Debug, Clone)]
pub struct Micros(Histogram<u64>);

impl Default for Micros {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are supported"))
    }
}

impl Micros {
    /// Records a value `count` times.
    #[inline]
    pub fn record(&mut self, micros: u64, count: u64) {
        let recorded = self.0.record_n(micros, count);
        recorded.expect("the histogram grows to any value");
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        let added = self.0.add(&other.0);
        added.expect("the histogram grows to any value");
    }

    /// The percentiles; `None` if it is empty.
    pub fn percentiles(&self) -> Option<Percentiles> {
        (!self.0.is_empty()).then(|| Percentiles {
            p50: self.0.value_at_quantile(0.5),
            p90: self.0.value_at_quantile(0.9),
            p99: self.0.value_at_quantile(0.99),
            p999: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        })
    }
}

/// Percentiles of a duration, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Maximum.
    pub max: u64,
}

impl Percentiles {
    /// All percentiles by name: `p99.9`, `max`.
    fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("p50", self.p50),
            ("p90", self.p90),
            ("p99", self.p99),
            ("p99.9", self.p999),
            ("max", self.max),
        ]
    }

    /// The percentile with this name.
    pub(super) fn get(&self, name: &str) -> Option<u64> {
        let named = self.named().into_iter().find(|(known, _)| *known == name);
        named.map(|(_, micros)| micros)
    }

    /// The percentiles in one line: `p50 …  p90 …  p99 …  p99.9 …  max …`.
    pub fn line(&self) -> String {
        let each = self
            .named()
            .map(|(name, micros)| format!("{name} {}", duration(micros)));
        each.join("  ")
    }
}

/// Microseconds per item; 0 without items.
pub fn micros_per(seconds: f64, count: u64) -> f64 {
    if count > 0 {
        seconds * 1e6 / count as f64
    } else {
        0.0
    }
}

/// `1 node`, `2 nodes`.
pub fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::plural;

    #[test]
    fn one_item_is_singular() {
        assert_eq!(plural(1, "node"), "1 node");
        assert_eq!(plural(2, "node"), "2 nodes");
    }
}
