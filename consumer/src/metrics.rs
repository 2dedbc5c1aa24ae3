//! Every metric of this process, one struct a component, registered on an injected registry.
//!
//! Counters move once a chunk or a batch, never once a cookie.

mod aside;
mod maintenance;
mod producers;
mod sink;
mod subscription;

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Result,
};
use runtime::metrics::{Latency, Registry, register_process};

pub use self::{
    aside::Aside,
    maintenance::{Maintenance, Run},
    producers::ProducerSeries,
    sink::{DeadLetters, Sink},
    subscription::Subscription,
};
use crate::ledger::Ledger;

/// All metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What subscriptions count.
    pub subscription: Subscription,
    /// What the sink counts.
    pub sink: Sink,
    /// What is counted of cookies that are set aside.
    pub aside: Aside,
    /// What maintenance counts.
    pub maintenance: Maintenance,
}

impl Metrics {
    /// Registers everything, the process's own figures included.
    ///
    /// # Errors
    /// When a name is taken on this registry.
    pub fn register(registry: &Registry) -> Result<Self> {
        register_process(registry, "consumer", env!("CARGO_PKG_VERSION"))?;
        let names = Names(registry);
        let ledger = Ledger::new()?;
        ledger.register(registry)?;
        Ok(Self {
            subscription: Subscription::register(&names, ledger.clone())?,
            sink: Sink::register(&names, ledger.clone())?,
            aside: Aside::register(&names, ledger)?,
            maintenance: Maintenance::register(&names)?,
        })
    }
}

/// Finest where cookies arrive when all is well: after one to three times a chunk's age of 10 ms.
const SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.05, 0.075, 0.1, 0.15,
    0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
];

/// Registers metrics under this process's prefix.
struct Names<'a>(&'a Registry);

impl Names<'_> {
    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(format!("consumer_{name}"), help)
    }

    #[track_caller]
    fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        let counter = IntCounter::with_opts(Self::opts(name, help))?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    #[track_caller]
    fn counters(&self, name: &str, help: &str, label: &str) -> Result<IntCounterVec> {
        let counters = IntCounterVec::new(Self::opts(name, help), &[label])?;
        self.0.register(Box::new(counters.clone()))?;
        Ok(counters)
    }

    #[track_caller]
    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        let gauge = IntGauge::with_opts(Self::opts(name, help))?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    #[track_caller]
    fn seconds(&self, name: &str, help: &str) -> Result<Gauge> {
        let gauge = Gauge::with_opts(Self::opts(name, help))?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    #[track_caller]
    fn latency(&self, name: &str, help: &str) -> Result<Latency> {
        Latency::register(self.0, &format!("consumer_{name}"), help, SECONDS)
    }

    #[track_caller]
    fn gauges(&self, name: &str, help: &str, label: &str) -> Result<IntGaugeVec> {
        let gauges = IntGaugeVec::new(Self::opts(name, help), &[label])?;
        self.0.register(Box::new(gauges.clone()))?;
        Ok(gauges)
    }

    #[track_caller]
    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts {
            common_opts: Self::opts(name, help),
            buckets: buckets.to_vec(),
        };
        let histogram = Histogram::with_opts(opts)?;
        self.0.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }
}

/// A gauge's value for a count that may pass what it can hold.
#[must_use]
pub fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
