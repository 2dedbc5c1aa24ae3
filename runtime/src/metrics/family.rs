//! Metrics that are computed at each scrape.

use std::{collections::HashMap, ops::Deref};

use metric_defs::{Kind, MetricDef};
use prometheus::{
    Result,
    core::{Collector, Desc},
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};

/// A metric with its current samples.
#[derive(Debug, Clone)]
pub struct Family {
    def: MetricDef,
    pub(super) samples: MetricFamily,
}

impl Family {
    pub(super) fn def(&self) -> MetricDef {
        self.def
    }
}

impl Deref for Family {
    type Target = MetricFamily;

    fn deref(&self) -> &MetricFamily {
        &self.samples
    }
}

/// A collector that computes metrics with a function.
pub(super) struct Reader<F> {
    descs: Vec<Desc>,
    read: F,
}

impl<F> Reader<F> {
    /// # Errors
    /// If the name of a metric or label is invalid.
    pub(super) fn new(defs: &[MetricDef], read: F) -> Result<Self> {
        let descs = defs.iter().map(|def| desc(*def)).collect::<Result<_>>()?;
        Ok(Self { descs, read })
    }
}

impl<F: Fn() -> Vec<Family> + Send + Sync> Collector for Reader<F> {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        (self.read)().into_iter().map(|it| it.samples).collect()
    }
}

/// The Prometheus description of a metric.
pub(super) fn desc(def: MetricDef) -> Result<Desc> {
    let labels = def.labels.iter().map(ToString::to_string).collect();
    let (name, help) = (def.name.to_owned(), def.help.to_owned());
    Desc::new(name, help, labels, HashMap::new())
}

/// A counter or gauge with these samples: label values in the order of the definition, and the sample value.
///
/// # Panics
/// If the metric is a histogram.
pub fn family<'a, L: AsRef<[&'a str]>>(
    def: MetricDef,
    samples: impl IntoIterator<Item = (L, f64)>,
) -> Family {
    let samples = samples.into_iter().map(|(labels, value)| {
        let mut metric = labelled(def, labels.as_ref());
        match def.kind {
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
            Kind::Histogram(_) => panic!("{def} is a histogram"),
        }
        metric
    });
    with_samples(def, samples)
}

/// A counter or gauge without labels; no sample for `None`.
pub fn value(def: MetricDef, value: impl Into<Option<f64>>) -> Family {
    family::<[&str; 0]>(def, value.into().map(|value| ([], value)))
}

/// A count as a sample, exact up to 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "Prometheus has only 64-bit floats"
)]
pub fn as_f64(count: u64) -> f64 {
    count as f64
}

/// A histogram with these samples: label values, the non-cumulative count of each bucket (the last one is above all bounds), and the sum.
///
/// # Panics
/// If the metric is not a histogram.
pub fn histograms<'a, L: AsRef<[&'a str]>>(
    def: MetricDef,
    samples: impl IntoIterator<Item = (L, Vec<u64>, f64)>,
) -> Family {
    let Kind::Histogram(bounds) = def.kind else {
        panic!("{def} is not a histogram");
    };
    let samples = samples.into_iter().map(|(labels, counts, sum)| {
        let mut histogram = Histogram::default();
        let mut cumulative = 0;
        let buckets = bounds.iter().zip(&counts).map(|(bound, count)| {
            cumulative += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.iter().sum());
        histogram.set_sample_sum(sum);
        let mut metric = labelled(def, labels.as_ref());
        metric.set_histogram(histogram);
        metric
    });
    with_samples(def, samples)
}

fn labelled(def: MetricDef, values: &[&str]) -> Metric {
    let pairs = def.labels.iter().zip(values).map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    let mut metric = Metric::default();
    metric.set_label(pairs.collect());
    metric
}

fn with_samples(def: MetricDef, metrics: impl Iterator<Item = Metric>) -> Family {
    let mut samples = MetricFamily::default();
    samples.set_name(def.name.to_owned());
    samples.set_help(def.help.to_owned());
    samples.set_field_type(match def.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram(_) => MetricType::HISTOGRAM,
    });
    samples.set_metric(metrics.collect());
    Family { def, samples }
}
