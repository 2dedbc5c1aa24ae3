//! A histogram of seconds for many equal observations at once.

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
    family::{desc, histograms},
    handle::{Handle, bounds},
};

/// A histogram of seconds that takes many equal observations at once, which `prometheus::Histogram` cannot: the
/// requests of a burst, or the cookies of a chunk, share their times. Clones share it.
///
/// An observation costs two atomic additions, however many it stands for. A scrape that comes between the two shows the
/// sum without the last of them; the counts of its buckets always add up.
#[derive(Debug, Clone)]
pub struct Latency {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    figure: MetricDef,
    desc: Desc,
    /// Upper bounds of all buckets but the last.
    bounds: &'static [f64],
    /// Observations in each bucket alone.
    counts: Vec<AtomicU64>,
    sum: AtomicF64,
}

/// One with a bucket up to each of the figure's bounds, which are seconds, and one beyond.
impl Handle for Latency {
    fn of(figure: MetricDef) -> Result<Self> {
        let bounds = bounds(figure)?;
        let shared = Shared {
            figure,
            desc: desc(figure)?,
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicF64::new(0.0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl Latency {
    /// Adds `count` observations of the same time.
    pub fn observe(&self, time: Duration, count: u64) {
        let shared = &*self.shared;
        let seconds = time.as_secs_f64();
        let bucket = shared.bounds.partition_point(|bound| *bound < seconds);
        shared.counts[bucket].fetch_add(count, Ordering::Relaxed);
        shared.sum.inc_by(seconds * as_f64(count));
    }
}

/// Exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

impl Collector for Latency {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.shared.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let shared = &*self.shared;
        let sum = shared.sum.get();
        let counts = shared.counts.iter();
        let counts = counts.map(|count| count.load(Ordering::Relaxed)).collect();
        vec![histograms::<[&str; 0]>(shared.figure, [([], counts, sum)])]
    }
}
