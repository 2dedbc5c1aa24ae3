//! Figures that are read when somebody asks, instead of being kept.

use std::collections::HashMap;

use metric_defs::{Kind, MetricDef};
use prometheus::{
    Result,
    core::{Collector, Desc},
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};

/// What reads some figures, and how it announces them.
pub(super) struct Reader<F> {
    descs: Vec<Desc>,
    read: F,
}

impl<F: Fn() -> Vec<MetricFamily>> Reader<F> {
    /// # Errors
    /// When the name of a figure, or of a label, is none.
    pub(super) fn new(figures: impl IntoIterator<Item = MetricDef>, read: F) -> Result<Self> {
        let descs = figures.into_iter().map(desc).collect::<Result<_>>()?;
        Ok(Self { descs, read })
    }
}

impl<F: Fn() -> Vec<MetricFamily> + Send + Sync> Collector for Reader<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.read)()
    }
}

/// How a collector announces a figure.
pub(super) fn desc(figure: MetricDef) -> Result<Desc> {
    let labels = figure.labels.iter().map(ToString::to_string).collect();
    let (name, help) = (figure.name.to_owned(), figure.help.to_owned());
    Desc::new(name, help, labels, HashMap::new())
}

/// A counter or gauge with these samples, each the values of its labels in their order, and its own value.
///
/// # Panics
/// When the figure is a histogram.
#[must_use]
pub fn family<'a, L: AsRef<[&'a str]>>(
    figure: MetricDef,
    samples: impl IntoIterator<Item = (L, f64)>,
) -> MetricFamily {
    let metrics = samples.into_iter().map(|(labels, value)| {
        let mut metric = labelled(figure, labels.as_ref());
        match figure.kind {
            Kind::Counter => {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            }
            Kind::Gauge => {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            Kind::Histogram(_) => panic!("{figure} is a histogram"),
        }
        metric
    });
    of_metrics(figure, metrics)
}

/// A histogram with these samples, each the values of its labels, how many observations were up to each bound and above the one before (the
/// last: above all bounds), and their sum.
///
/// # Panics
/// When the figure is not a histogram.
#[must_use]
pub fn histograms<'a, L: AsRef<[&'a str]>>(
    figure: MetricDef,
    samples: impl IntoIterator<Item = (L, Vec<u64>, f64)>,
) -> MetricFamily {
    let Kind::Histogram(bounds) = figure.kind else {
        panic!("{figure} is not a histogram");
    };
    let metrics = samples.into_iter().map(|(labels, counts, sum)| {
        let mut histogram = Histogram::default();
        let mut so_far = 0;
        let buckets = bounds.iter().zip(&counts).map(|(bound, count)| {
            so_far += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(so_far);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.iter().sum());
        histogram.set_sample_sum(sum);
        let mut metric = labelled(figure, labels.as_ref());
        metric.set_histogram(histogram);
        metric
    });
    of_metrics(figure, metrics)
}

fn labelled(figure: MetricDef, values: &[&str]) -> Metric {
    let pairs = figure.labels.iter().zip(values).map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    let mut metric = Metric::default();
    metric.set_label(pairs.collect());
    metric
}

fn of_metrics(figure: MetricDef, metrics: impl Iterator<Item = Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(figure.name.to_owned());
    family.set_help(figure.help.to_owned());
    family.set_field_type(match figure.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram(_) => MetricType::HISTOGRAM,
    });
    family.set_metric(metrics.collect());
    family
}
