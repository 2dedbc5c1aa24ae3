//! What every process's metrics have in common: a registry that knows what is in it, the process itself, and
//! the kinds of metrics that the `prometheus` crate lacks.
//!
//! That crate's registry shows only what has a value; a metric of which no label exists yet is invisible. The
//! [`Registry`] here also lists those, with their types and labels, so that `docs/metrics.md` can be written from it
//! and nothing be forgotten. It is a type of its own so that nothing can be registered past it.

mod family;
mod handle;
mod latency;
mod peak;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, ensure};
use metric_defs::MetricDef;
use prometheus::{
    IntGaugeVec, Result,
    core::{Collector, Desc},
    proto::{MetricFamily, MetricType},
};

use self::family::Reader;
use super::{COMMIT, PROFILE};

pub use self::{
    family::{family, histograms},
    handle::Handle,
    latency::Latency,
    peak::{Peak, PeakGauge},
};

/// Where metrics are registered; clones share it.
#[derive(Clone, Default)]
pub struct Registry {
    registry: prometheus::Registry,
    on_scrape: Arc<Mutex<Vec<ScrapeHook>>>,
    registered: Arc<Mutex<Vec<Registered>>>,
}

/// What is done after each scrape.
type ScrapeHook = Box<dyn Fn() + Send + Sync>;

/// A collector, and the source file that registered it.
struct Registered {
    collector: Arc<dyn Collector>,
    file: &'static str,
}

/// What is known of a metric without a scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its name.
    pub name: String,
    /// What it says.
    pub help: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels by name, each with the values that there are now.
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

    /// Registers a handle of this figure.
    ///
    /// # Errors
    /// When the name is taken, or such a handle does not count such a figure.
    #[track_caller]
    pub fn add<H: Handle>(&self, figure: MetricDef) -> Result<H> {
        let handle = H::of(figure)?;
        self.register(Box::new(handle.clone()))?;
        Ok(handle)
    }

    /// Registers figures that are read together when somebody asks, all of them in that order.
    ///
    /// # Errors
    /// When a name is taken.
    #[track_caller]
    pub fn read(
        &self,
        figures: impl IntoIterator<Item = MetricDef>,
        read: impl Fn() -> Vec<MetricFamily> + Send + Sync + 'static,
    ) -> Result<()> {
        self.register(Box::new(Reader::new(figures, read)?))
    }

    /// Adds a collector, which must announce each metric it may ever collect, and collect each of them even when it has no
    /// value.
    ///
    /// # Errors
    /// When a name is taken.
    #[track_caller]
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<()> {
        let collector: Arc<dyn Collector> = Arc::from(collector);
        let file = Location::caller().file();
        self.registry
            .register(Box::new(Shared(Arc::clone(&collector))))?;
        locked(&self.registered).push(Registered { collector, file });
        Ok(())
    }

    /// Lets `act` be called after each scrape, for what tells of the time between two of them.
    pub fn on_scrape(&self, act: impl Fn() + Send + Sync + 'static) {
        locked(&self.on_scrape).push(Box::new(act));
    }

    /// What a scrape returns, without ending the intervals of peaks: all that has a value.
    #[must_use]
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }

    /// All that has a value, for somebody who comes back for what there is then.
    #[must_use]
    pub fn scrape(&self) -> Vec<MetricFamily> {
        let families = self.gather();
        for act in &*locked(&self.on_scrape) {
            act();
        }
        families
    }

    /// All that is registered, in the order of registration, whether it has a value or not.
    ///
    /// # Errors
    /// When a collector breaks the promise of [`register`](Self::register).
    pub fn described(&self) -> anyhow::Result<Vec<MetricDescription>> {
        let mut all = Vec::new();
        for it in &*locked(&self.registered) {
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registered {
    fn describe(&self, all: &mut Vec<MetricDescription>) -> anyhow::Result<()> {
        let families = self.collector.collect().into_iter();
        let mut families: BTreeMap<_, _> = families
            .map(|family| (family.name().to_owned(), family))
            .collect();
        for desc in self.collector.desc() {
            let (file, name) = (self.file, &desc.fq_name);
            let family = families.remove(name);
            let family = family.with_context(|| format!("{file} does not collect {name}"))?;
            all.push(described(desc, &family, file));
        }
        let unannounced = families.keys().next();
        ensure!(
            unannounced.is_none(),
            "{} does not announce {unannounced:?}",
            self.file
        );
        Ok(())
    }
}

fn described(desc: &Desc, family: &MetricFamily, file: &'static str) -> MetricDescription {
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

/// One collector in two places.
struct Shared(Arc<dyn Collector>);

impl Collector for Shared {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.collect()
    }
}

/// Registers what the process `<process>` uses of the machine, `<process>_build_info`, and `<process>_log_lines_dropped_total`.
///
/// # Errors
/// When a name is taken.
pub fn register_process(registry: &Registry, process: &str, version: &str) -> Result<()> {
    usage::register(registry, process)?;
    let build = MetricDef::gauge("build_info", "Always 1; the labels say what runs.");
    let build = build.by(&["version", "commit", "profile"]).of(process);
    let build: IntGaugeVec = registry.add(build)?;
    build.with_label_values(&[version, COMMIT, PROFILE]).set(1);
    Ok(())
}

#[cfg(test)]
mod tests;
