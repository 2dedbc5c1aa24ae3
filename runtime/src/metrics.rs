//! Metrics infrastructure: a registry that can describe its metrics, process metrics, and metric types missing in the `prometheus`
//! crate.
//!
//! The registry of that crate omits metrics without label values. This module's [`Registry`] also describes those, so that
//! `docs/metrics.md`, which is generated from it, is complete. All metrics must be registered through it.

mod family;
mod handle;
mod latency;
mod peak;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::Location,
    sync::Arc,
};

use metric_defs::MetricDef;
use parking_lot::Mutex;
use prometheus::{IntGaugeVec, Result, core::Collector, proto::MetricFamily};

use self::family::Reader;
use super::{COMMIT, PROFILE};

pub use self::{
    family::{Family, as_f64, family, histograms, value},
    handle::Handle,
    latency::Latency,
    peak::{Peak, PeakGauge},
};

/// Registry of all metrics; clones share it.
///
/// ```
/// use metric_defs::MetricDef;
/// use prometheus::IntCounterVec;
/// use runtime::metrics::Registry;
///
/// const DROPPED: MetricDef = MetricDef::counter("dropped_total", "Dropped.").by(&["reason"]);
///
/// let registry = Registry::new();
/// let dropped: IntCounterVec = registry.add(DROPPED)?;
/// // A metric without a value is described, but not exported.
/// assert_eq!(registry.descriptions()[0].def.name, "dropped_total");
/// assert!(registry.gather().is_empty());
///
/// dropped.with_label_values(&["full"]).inc();
/// assert_eq!(registry.gather()[0].name(), "dropped_total");
/// # prometheus::Result::Ok(())
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    registry: prometheus::Registry,
    scrape_hooks: Arc<Mutex<Vec<ScrapeHook>>>,
    /// Each metric, with the source file that registered it.
    defs: Arc<Mutex<Vec<(MetricDef, &'static str)>>>,
}

/// Called after each scrape.
type ScrapeHook = Box<dyn Fn() + Send + Sync>;

/// A registered metric.
#[derive(Debug, Clone)]
pub struct MetricDescription {
    /// Its definition.
    pub def: MetricDef,
    /// Its labels, each with its current values.
    pub labels: BTreeMap<&'static str, BTreeSet<String>>,
    /// The source file that registered it.
    pub file: &'static str,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates and registers a handle of this metric.
    ///
    /// # Errors
    /// If the name is already registered, or the handle does not fit the metric's type and labels.
    #[track_caller]
    pub fn add<H: Handle>(&self, def: MetricDef) -> Result<H> {
        let handle = H::of(def)?;
        self.register(def, Box::new(handle.clone()))?;
        Ok(handle)
    }

    /// Registers metrics that `read` computes at each scrape. It must always return the same metrics.
    ///
    /// # Errors
    /// If a name is already registered.
    #[track_caller]
    pub fn read(&self, read: impl Fn() -> Vec<Family> + Send + Sync + 'static) -> Result<()> {
        let defs: Vec<MetricDef> = read().iter().map(Family::def).collect();
        self.registry
            .register(Box::new(Reader::new(&defs, read)?))?;
        let file = Location::caller().file();
        self.defs
            .lock()
            .extend(defs.into_iter().map(|def| (def, file)));
        Ok(())
    }

    /// Registers the collector of a metric.
    ///
    /// # Errors
    /// If the name is already registered.
    #[track_caller]
    pub fn register(&self, def: MetricDef, collector: Box<dyn Collector>) -> Result<()> {
        self.registry.register(collector)?;
        self.defs.lock().push((def, Location::caller().file()));
        Ok(())
    }

    /// Calls `hook` after each scrape, for metrics about the interval between scrapes.
    pub fn on_scrape(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.scrape_hooks.lock().push(Box::new(hook));
    }

    /// All metrics with a value. Does not call the scrape hooks, so it does not end the intervals of peaks.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// Returns all metrics with a value, and then calls the scrape hooks.
    pub fn scrape(&self) -> Vec<MetricFamily> {
        let families = self.gather();
        for hook in &*self.scrape_hooks.lock() {
            hook();
        }
        families
    }

    /// Descriptions of all metrics in registration order, including those without a value.
    pub fn descriptions(&self) -> Vec<MetricDescription> {
        let families = self.gather();
        let describe = |&(def, file): &(MetricDef, &'static str)| {
            let family = families.iter().find(|it| it.name() == def.name);
            let metrics = family.into_iter().flat_map(MetricFamily::get_metric);
            let pairs: Vec<_> = metrics.flat_map(|it| it.get_label()).collect();
            let values = |label: &'static str| {
                let pairs = pairs.iter().filter(|it| it.name() == label);
                (label, pairs.map(|it| it.value().to_owned()).collect())
            };
            MetricDescription {
                def,
                labels: def.labels.iter().copied().map(values).collect(),
                file,
            }
        };
        self.defs.lock().iter().map(describe).collect()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registry.fmt(formatter)
    }
}

/// Registers the resource usage of the process, `<process>_build_info` and `<process>_log_lines_dropped_total`.
///
/// # Errors
/// If a name is already registered.
pub(crate) fn register_process(registry: &Registry, process: &str) -> Result<()> {
    usage::register(registry, process)?;
    let build = MetricDef::gauge(
        "build_info",
        "Version, commit and build profile of the program as labels; always 1.",
    );
    let build = build.by(&["version", "commit", "profile"]).of(process);
    let build: IntGaugeVec = registry.add(build)?;
    let version = env!("CARGO_PKG_VERSION");
    build.with_label_values(&[version, COMMIT, PROFILE]).set(1);
    Ok(())
}

#[cfg(test)]
mod tests;
