//! A histogram for cookies that share their times.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use prometheus::{
    Result,
    core::{Collector, Desc},
    proto,
};

use super::{Names, SECONDS};

/// A histogram of seconds that takes many equal observations at once, which `prometheus::Histogram` cannot:
/// all cookies of a chunk share the time they were accepted.
#[derive(Clone, Debug)]
pub struct Latency {
    desc: Desc,
    counts: std::sync::Arc<Mutex<Counts>>,
}

#[derive(Debug)]
struct Counts {
    buckets: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Latency {
    pub(super) fn register(names: &Names<'_>, name: &str, help: &str) -> Result<Self> {
        let desc = Desc::new(
            format!("consumer_{name}"),
            help.to_owned(),
            Vec::new(),
            HashMap::new(),
        )?;
        let counts = Counts {
            buckets: vec![0; SECONDS.len()],
            sum: 0.0,
            count: 0,
        };
        let latency = Self {
            desc,
            counts: std::sync::Arc::new(Mutex::new(counts)),
        };
        names.0.register(Box::new(latency.clone()))?;
        Ok(latency)
    }

    /// Adds observations, each a time and how many cookies took that long. One lock for all of them.
    pub fn observe(&self, observations: impl IntoIterator<Item = (Duration, u64)>) {
        let mut counts = self.lock();
        for (time, cookies) in observations {
            let seconds = time.as_secs_f64();
            let bucket = SECONDS.partition_point(|bound| *bound < seconds);
            if let Some(bucket) = counts.buckets.get_mut(bucket) {
                *bucket += cookies;
            }
            counts.sum += seconds * as_f64(cookies);
            counts.count += cookies;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

impl Collector for Latency {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let counts = self.lock();
        let mut cumulative = 0;
        let buckets = SECONDS.iter().zip(&counts.buckets).map(|(bound, count)| {
            cumulative += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            bucket
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(counts.count);
        histogram.set_sample_sum(counts.sum);
        let mut metric = proto::Metric::default();
        metric.set_histogram(histogram);
        let mut family = proto::MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(proto::MetricType::HISTOGRAM);
        family.set_metric(vec![metric]);
        vec![family]
    }
}
