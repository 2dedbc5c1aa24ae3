//! A histogram of seconds that adds many equal observations in one call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metric_defs::MetricDef;
use prometheus::{
    Result,
    core::{Atomic, AtomicF64, Collector, Desc},
    proto::MetricFamily,
};

use super::{
    family::{as_f64, desc, histograms},
    handle::{Handle, bounds},
};

/// A histogram of seconds that adds many equal observations in one call, unlike `prometheus::Histogram`. The requests of one
/// read, for instance, or the cookies of a chunk have equal times. Clones share the histogram.
///
/// A call costs two atomic additions. A scrape between the two shows a sum without the last observations. Bucket counts are
/// always consistent.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Arc<AtomicHistogram>,
}

#[derive(Debug)]
struct AtomicHistogram {
    def: MetricDef,
    desc: Desc,
    /// Upper bounds of all buckets except the last.
    bounds: &'static [f64],
    /// Non-cumulative count of each bucket.
    counts: Vec<AtomicU64>,
    sum: AtomicF64,
}

/// One bucket per bound, in seconds, and one above all bounds.
impl Handle for Latency {
    fn of(def: MetricDef) -> Result<Self> {
        let bounds = bounds(def)?;
        let histogram = AtomicHistogram {
            def,
            desc: desc(def)?,
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicF64::new(0.0),
        };
        Ok(Self {
            histogram: Arc::new(histogram),
        })
    }
}

impl Latency {
    /// Adds `count` observations of the same time.
    pub fn observe(&self, time: Duration, count: u64) {
        let histogram = &*self.histogram;
        let seconds = time.as_secs_f64();
        let bucket = histogram.bounds.partition_point(|bound| *bound < seconds);
        histogram.counts[bucket].fetch_add(count, Ordering::Relaxed);
        histogram.sum.inc_by(seconds * as_f64(count));
    }
}

impl Collector for Latency {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.histogram.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let histogram = &*self.histogram;
        let sum = histogram.sum.get();
        let counts = histogram.counts.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed)).collect();
        vec![histograms::<[&str; 0]>(histogram.def, [([], counts, sum)]).samples]
    }
}
