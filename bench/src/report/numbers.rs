//! Histograms, percentiles and averages.

use hdrhistogram::Histogram;
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
        let quantiles = [
            ("p50", 0.5),
            ("p90", 0.9),
            ("p99", 0.99),
            ("p99.9", 0.999),
            ("max", 1.0),
        ];
        let micros = quantiles.map(|(name, it)| (name, self.0.value_at_quantile(it)));
        (!self.0.is_empty()).then_some(Percentiles(micros))
    }
}

/// Percentiles of a duration by name, in microseconds: `p50`, `p90`, `p99`, `p99.9`, `max`.
#[derive(Debug, Clone, Copy)]
pub struct Percentiles([(&'static str, u64); 5]);

impl Percentiles {
    /// The percentile with this name.
    ///
    /// # Panics
    /// If there is none with this name.
    pub fn get(&self, name: &str) -> u64 {
        let named = self.0.iter().find(|(known, _)| *known == name);
        named.expect("a known name").1
    }

    /// The percentiles in one line: `p50 …  p90 …  p99 …  p99.9 …  max …`.
    pub fn line(&self) -> String {
        let each = self
            .0
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
