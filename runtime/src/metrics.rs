//! Metrics infrastructure: a registry that can describe its metrics, process metrics, and metric types that the `prometheus` crate
//! lacks.
//!
//! The registry of that crate returns only metrics with a value; a metric without any label values yet is invisible. The
//! [`Registry`] here also describes those, so that `docs/metrics.md` can be generated from it and is complete. All metrics must be
//! registered through it.

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

use anyhow::{Context as _, ensure};
use metric_defs::MetricDef;
use parking_lot::Mutex;
use prometheus::{
    IntGaugeVec, Result,
    core::{Collector, Desc},
    proto::{MetricFamily, MetricType},
};

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
    collectors: Arc<Mutex<Vec<RegisteredCollector>>>,
}

/// Called after each scrape.
type ScrapeHook = Box<dyn Fn() + Send + Sync>;

/// A collector with the source file that registered it.
struct RegisteredCollector {
    collector: Arc<dyn Collector>,
    file: &'static str,
}

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
    #[must_use]
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
        self.register(Box::new(handle.clone()))?;
        Ok(handle)
    }

    /// Registers metrics that `read` computes at each scrape. It must always return the same metrics.
    ///
    /// # Errors
    /// If a name is already registered.
    #[track_caller]
    pub fn read(&self, read: impl Fn() -> Vec<Family> + Send + Sync + 'static) -> Result<()> {
        self.register(Box::new(Reader::new(read)?))
    }

    /// Registers a collector. It must describe every metric it collects, and collect each of them even without a value.
    ///
    /// # Errors
    /// If a name is already registered.
    #[track_caller]
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<()> {
        let collector: Arc<dyn Collector> = Arc::from(collector);
        let file = Location::caller().file();
        self.registry
            .register(Box::new(SharedCollector(Arc::clone(&collector))))?;
        self.collectors
            .lock()
            .push(RegisteredCollector { collector, file });
        Ok(())
    }

    /// Calls `hook` after each scrape, for metrics about the interval between scrapes.
    pub fn on_scrape(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.scrape_hooks.lock().push(Box::new(hook));
    }

    /// All metrics with a value. Does not call the scrape hooks, so the intervals of peaks continue.
    #[must_use]
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// All metrics with a value, followed by the scrape hooks.
    #[must_use]
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
    /// If a collector violates the contract of [`register`](Self::register).
    pub fn descriptions(&self) -> anyhow::Result<Vec<MetricDescription>> {
        let mut all = Vec::new();
        for it in &*self.collectors.lock() {
            it.describe(&mut all)?;
        }
        Ok(all)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registry.fmt(formatter)
    }
}

impl RegisteredCollector {
    fn describe(&self, all: &mut Vec<MetricDescription>) -> anyhow::Result<()> {
        let families = self.collector.collect().into_iter();
        let mut families: BTreeMap<_, _> = families
            .map(|family| (family.name().to_owned(), family))
            .collect();
        for desc in self.collector.desc() {
            let (file, name) = (self.file, &desc.fq_name);
            let family = families.remove(name);
            let family = family.with_context(|| format!("{file} does not collect {name}"))?;
            all.push(describe(desc, &family, file));
        }
        let undescribed = families.keys().next();
        ensure!(
            undescribed.is_none(),
            "{} does not describe {undescribed:?}",
            self.file
        );
        Ok(())
    }
}

fn describe(desc: &Desc, family: &MetricFamily, file: &'static str) -> MetricDescription {
    let fixed = desc.const_label_pairs.iter().map(|pair| pair.name());
    let names = fixed.chain(desc.variable_labels.iter().map(String::as_str));
    let mut labels: BTreeMap<_, _> = names
        .map(|name| (name.to_owned(), BTreeSet::new()))
        .collect();
    for pair in family.get_metric().iter().flat_map(|it| it.get_label()) {
        let values = labels.entry(pair.name().to_owned()).or_default();
        values.insert(pair.value().to_owned());
    }
    MetricDescription {
        name: desc.fq_name.clone(),
        help: desc.help.clone(),
        kind: match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            _ => "gauge",
        },
        labels,
        file,
    }
}

/// A collector in two registries.
struct SharedCollector(Arc<dyn Collector>);

impl Collector for SharedCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.collect()
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
