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

use anyhow::ensure;
use metric_defs::{Kind, MetricDef};
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
/// assert_eq!(registry.descriptions().unwrap()[0].name, "dropped_total");
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

/// Description of a registered metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its name.
    pub name: String,
    /// Its help text.
    pub help: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels, each with its current values.
    pub labels: BTreeMap<String, BTreeSet<String>>,
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
    ///
    /// # Errors
    /// If a metric was registered without its definition.
    pub fn descriptions(&self) -> anyhow::Result<Vec<MetricDescription>> {
        let families = self.gather().into_iter();
        let mut families: BTreeMap<_, _> = families.map(|it| (it.name().to_owned(), it)).collect();
        let defs = self.defs.lock();
        let all = defs.iter().map(|(def, file)| {
            let family = families.remove(def.name).unwrap_or_default();
            describe(def, &family, file)
        });
        let all = all.collect();
        let undescribed = families.keys().next();
        ensure!(undescribed.is_none(), "{undescribed:?} is not described");
        Ok(all)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registry.fmt(formatter)
    }
}

fn describe(def: &MetricDef, family: &MetricFamily, file: &'static str) -> MetricDescription {
    let names = def.labels.iter().map(ToString::to_string);
    let mut labels: BTreeMap<_, _> = names.map(|name| (name, BTreeSet::new())).collect();
    for pair in family.get_metric().iter().flat_map(|it| it.get_label()) {
        let values = labels.entry(pair.name().to_owned()).or_default();
        values.insert(pair.value().to_owned());
    }
    MetricDescription {
        name: def.name.to_owned(),
        help: def.help.to_owned(),
        kind: match def.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        },
        labels,
        file,
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
