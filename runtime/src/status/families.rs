//! The metrics of a process as numbers, for a page that shows them.
//!
//! What is not there reads as nothing: zero, or no rows.

use prometheus::proto::{Metric, MetricFamily, MetricType};

use crate::metrics::Registry;

/// All metrics of a process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Families(Vec<MetricFamily>);

/// A histogram: its upper bounds, each with how many observations are not above it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets {
    /// Upper bound and cumulative count, by bound.
    pub buckets: Vec<(f64, u64)>,
    /// All observations, above the last bound too.
    pub count: u64,
    /// The sum of what was observed.
    pub sum: f64,
}

impl Families {
    /// Reads all.
    #[must_use]
    pub fn gather(registry: &Registry) -> Self {
        Self(registry.gather())
    }

    /// The sum of a counter or gauge over all labels; 0 when there is none.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.count_where(name, &[])
    }

    /// The same, of those with all of these labels.
    #[must_use]
    pub fn count_where(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let Some(family) = self.get(name) else {
            return 0;
        };
        let chosen = family.get_metric().iter().filter(|metric| {
            let mut wanted = labels.iter();
            wanted.all(|&(name, value)| label(metric, name) == Some(value))
        });
        chosen.map(|metric| whole(family, metric)).sum()
    }

    /// The values of a label, each with the sum of what has it, in order of appearance.
    #[must_use]
    pub fn by_label(&self, name: &str, by: &str) -> Vec<(&str, u64)> {
        let mut sums: Vec<(&str, u64)> = Vec::new();
        for (metric, count) in self.each(name) {
            let value = label(metric, by).unwrap_or_default();
            match sums.iter_mut().find(|(known, _)| *known == value) {
                Some((_, sum)) => *sum += count,
                None => sums.push((value, count)),
            }
        }
        sums
    }

    /// Every metric of a family with its value.
    pub fn each(&self, name: &str) -> impl Iterator<Item = (&Metric, u64)> {
        self.get(name).into_iter().flat_map(|family| {
            let metrics = family.get_metric().iter();
            metrics.map(move |metric| (metric, whole(family, metric)))
        })
    }

    /// A histogram, all labels together; `None` when there is none of the name.
    #[must_use]
    pub fn histogram(&self, name: &str) -> Option<Buckets> {
        self.get(name).and_then(sum_of_histograms)
    }

    fn get(&self, name: &str) -> Option<&MetricFamily> {
        self.0.iter().find(|family| family.name() == name)
    }
}

/// The value of a metric's label.
#[must_use]
pub fn label<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    let mut labels = metric.get_label().iter();
    labels
        .find(|label| label.name() == name)
        .map(prometheus::proto::LabelPair::value)
}

/// A value as a whole number, which all counts here are; what is below zero is zero.
fn whole(family: &MetricFamily, metric: &Metric) -> u64 {
    let value = match family.get_field_type() {
        MetricType::COUNTER => metric.get_counter().get_value(),
        MetricType::GAUGE => metric.get_gauge().get_value(),
        _ => 0.0,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates"
    )]
    let whole = value.round() as u64;
    whole
}

fn sum_of_histograms(family: &MetricFamily) -> Option<Buckets> {
    if family.get_field_type() != MetricType::HISTOGRAM {
        return None;
    }
    let mut sum = Buckets::default();
    for metric in family.get_metric() {
        let histogram = metric.get_histogram();
        sum.count += histogram.get_sample_count();
        sum.sum += histogram.get_sample_sum();
        for (at, bucket) in histogram.get_bucket().iter().enumerate() {
            let (bound, count) = (bucket.upper_bound(), bucket.cumulative_count());
            match sum.buckets.get_mut(at) {
                Some((_, known)) => *known += count,
                None => sum.buckets.push((bound, count)),
            }
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts};

    use super::*;

    #[test]
    fn figures_are_found_by_name_and_label_and_what_is_missing_is_zero() {
        let registry = Registry::new();
        let requests = IntCounterVec::new(Opts::new("requests_total", "help"), &["dsp", "outcome"]);
        let requests = requests.unwrap();
        for (dsp, outcome, count) in [("17", "ok", 5), ("17", "bad", 2), ("9", "ok", 3)] {
            requests.with_label_values(&[dsp, outcome]).inc_by(count);
        }
        let options = HistogramOpts::new("edge_seconds", "help").buckets(vec![1.0, 2.0]);
        let seconds = Histogram::with_opts(options).unwrap();
        for observed in [0.5, 1.5, 5.0] {
            seconds.observe(observed);
        }
        registry.register(Box::new(requests)).unwrap();
        registry.register(Box::new(seconds)).unwrap();
        let families = Families::gather(&registry);
        assert_eq!(families.count("requests_total"), 10);
        let ok = [("outcome", "ok")];
        assert_eq!(families.count_where("requests_total", &ok), 8);
        let mut by_dsp = families.by_label("requests_total", "dsp");
        by_dsp.sort_unstable();
        assert_eq!(by_dsp, [("17", 7), ("9", 3)]);
        let expected = Buckets {
            buckets: vec![(1.0, 1), (2.0, 2)],
            count: 3,
            sum: 7.0,
        };
        assert_eq!(families.histogram("edge_seconds"), Some(expected.clone()));
        assert_eq!(families.count("nothing"), 0);
        assert!(families.by_label("nothing", "dsp").is_empty());
    }
}
