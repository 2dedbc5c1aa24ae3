//! Counts read from the metrics of producers and consumers.

use std::collections::BTreeMap;

use metric_defs::{Kind, MetricDef};

use crate::scrape::{Buckets, Samples, names};

/// Metrics that are read.
const METRICS: [MetricDef; 22] = [
    names::STARTED,
    names::APPENDED,
    names::DELIVERED,
    names::SENT_BYTES,
    names::LAG,
    names::SUBSCRIBER_LOST,
    names::SUBSCRIBER_CONNECTED,
    names::RECEIVED,
    names::WRITTEN,
    names::SUPERSEDED,
    names::SUPPRESSED,
    names::STALE,
    names::FAILED,
    names::LOST,
    names::UNCERTAIN_RESTARTS,
    names::BUFFER_BYTES,
    names::RECOVERY_HOLES,
    names::BUFFER_LIMIT_BYTES,
    names::RECEIVED_SECONDS,
    names::STORED_SECONDS,
    names::FLUSH_SECONDS,
    names::BATCH_COOKIES,
];

/// Counts of a producer or a consumer, over all labels; those of the other role are zero.
#[derive(Debug, Clone, Default)]
pub struct ProcessCounts {
    /// Values of counters and gauges, and sums of histograms.
    counts: BTreeMap<&'static str, u64>,
    histograms: BTreeMap<&'static str, Buckets>,
}

impl ProcessCounts {
    pub(super) fn read(samples: &Samples) -> Self {
        let mut read = Self::default();
        for MetricDef { name, kind, .. } in METRICS {
            if let Kind::Histogram(_) = kind {
                read.histograms.insert(name, samples.histogram(name));
                read.set(name, samples.count(format!("{name}_sum"), &[]));
            } else {
                read.set(name, samples.count(name, &[]));
            }
        }
        read
    }

    /// The value of a counter or gauge, or the sum of a histogram.
    pub fn of(&self, metric: MetricDef) -> u64 {
        self.counts.get(metric.name).copied().unwrap_or(0)
    }

    /// The buckets of a histogram.
    pub fn histogram(&self, metric: MetricDef) -> Buckets {
        let histogram = self.histograms.get(metric.name);
        histogram.cloned().unwrap_or_default()
    }

    /// Received cookies with an outcome.
    pub fn settled(&self) -> u64 {
        let outcomes = [
            names::WRITTEN,
            names::SUPERSEDED,
            names::SUPPRESSED,
            names::STALE,
            names::FAILED,
        ];
        outcomes.map(|metric| self.of(metric)).iter().sum()
    }

    /// Sets the count of a metric.
    pub fn set(&mut self, metric: &'static str, count: u64) {
        self.counts.insert(metric, count);
    }

    /// Counts since an `earlier` observation.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut more = Self::default();
        for metric in METRICS {
            let count = self.of(metric).saturating_sub(earlier.of(metric));
            more.set(metric.name, count);
        }
        more
    }

    /// Adds the counters of a `later` run, and takes its gauges.
    pub(super) fn plus(&self, later: &Self) -> Self {
        let mut sum = later.clone();
        for metric in METRICS.iter().filter(|it| it.kind != Kind::Gauge) {
            sum.set(metric.name, self.of(*metric) + later.of(*metric));
        }
        for (metric, more) in &mut sum.histograms {
            if let Some(histogram) = self.histograms.get(metric) {
                *more = histogram.plus(more);
            }
        }
        sum
    }
}
