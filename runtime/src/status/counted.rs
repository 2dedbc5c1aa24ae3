//! What a process counted as numbers, for a page that shows them: read from the handles that count it, never by name.

use prometheus::{IntCounterVec, IntGauge, core::Collector};
use serde::Serialize;

/// How often something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// What.
    pub what: String,
    /// How often.
    pub count: u64,
}

/// Counters of one label by its values, those that are not zero, in the order of the values.
#[must_use]
pub fn by_label(counters: &IntCounterVec) -> Vec<Count> {
    let families = counters.collect();
    let metrics = families.iter().flat_map(|family| family.get_metric());
    let counts = metrics.filter_map(|metric| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it was counted as a whole number"
        )]
        let count = metric.get_counter().get_value() as u64;
        let what = metric.get_label().first()?.value().to_owned();
        (count > 0).then_some(Count { what, count })
    });
    let mut counts: Vec<_> = counts.collect();
    counts.sort_unstable_by(|a, b| a.what.cmp(&b.what));
    counts
}

/// A gauge of what cannot be less than nothing.
#[must_use]
pub fn whole(gauge: &IntGauge) -> u64 {
    u64::try_from(gauge.get()).unwrap_or(0)
}

/// A histogram: its upper bounds, each with how many observations are not above it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets {
    /// Upper bound and cumulative count, by bound.
    pub buckets: Vec<(f64, u64)>,
    /// All observations, above the last bound too.
    pub count: u64,
}

impl Buckets {
    /// Those of a histogram without labels; none of what is not a histogram.
    #[must_use]
    pub fn of(histogram: &impl Collector) -> Self {
        let mut all = Self::default();
        for family in histogram.collect() {
            for metric in family.get_metric() {
                let histogram = metric.get_histogram();
                all.count += histogram.get_sample_count();
                let buckets = histogram.get_bucket().iter();
                all.buckets
                    .extend(buckets.map(|it| (it.upper_bound(), it.cumulative_count())));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use figures::Figure;
    use prometheus::Histogram;

    use super::*;
    use crate::metrics::Registry;

    #[test]
    fn counts_are_by_label_and_those_of_zero_are_left_out() {
        let figure = Figure::counter("requests_total", "help").by(&["outcome"]);
        let requests: IntCounterVec = Registry::new().add(figure).unwrap();
        for (outcome, count) in [("ok", 8), ("bad", 2), ("never", 0)] {
            requests.with_label_values(&[outcome]).inc_by(count);
        }
        let counts = by_label(&requests);
        let counts: Vec<_> = counts.iter().map(|it| (&*it.what, it.count)).collect();
        assert_eq!(counts, [("bad", 2), ("ok", 8)]);
    }

    #[test]
    fn buckets_are_those_of_the_histogram() {
        let figure = Figure::histogram("edge_seconds", "help", &[1.0, 2.0]);
        let seconds: Histogram = Registry::new().add(figure).unwrap();
        for observed in [0.5, 1.5, 5.0] {
            seconds.observe(observed);
        }
        let expected = Buckets {
            buckets: vec![(1.0, 1), (2.0, 2)],
            count: 3,
        };
        assert_eq!(Buckets::of(&seconds), expected);
    }
}
