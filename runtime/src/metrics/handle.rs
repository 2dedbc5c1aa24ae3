//! Handles with which components update their metrics.

use metric_defs::{Kind, MetricDef};
use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Result, core::Collector,
};

/// A handle of a metric; clones share its value.
pub trait Handle: Collector + Clone + 'static {
    /// A new handle with the value zero.
    ///
    /// # Errors
    /// If the metric's type differs, or only one of handle and metric has labels.
    fn of(def: MetricDef) -> Result<Self>;
}

impl Handle for IntCounter {
    fn of(def: MetricDef) -> Result<Self> {
        Self::with_opts(opts(def, Kind::Counter, false)?)
    }
}

impl Handle for IntCounterVec {
    fn of(def: MetricDef) -> Result<Self> {
        Self::new(opts(def, Kind::Counter, true)?, def.labels)
    }
}

impl Handle for IntGauge {
    fn of(def: MetricDef) -> Result<Self> {
        Self::with_opts(opts(def, Kind::Gauge, false)?)
    }
}

impl Handle for IntGaugeVec {
    fn of(def: MetricDef) -> Result<Self> {
        Self::new(opts(def, Kind::Gauge, true)?, def.labels)
    }
}

impl Handle for Histogram {
    fn of(def: MetricDef) -> Result<Self> {
        Self::with_opts(histogram_opts(def, false)?)
    }
}

impl Handle for HistogramVec {
    fn of(def: MetricDef) -> Result<Self> {
        Self::new(histogram_opts(def, true)?, def.labels)
    }
}

fn histogram_opts(def: MetricDef, has_labels: bool) -> Result<HistogramOpts> {
    Ok(HistogramOpts {
        buckets: bounds(def)?.to_vec(),
        common_opts: opts(def, def.kind, has_labels)?,
    })
}

fn opts(def: MetricDef, kind: Kind, has_labels: bool) -> Result<Opts> {
    if def.kind == kind && def.labels.is_empty() != has_labels {
        return Ok(Opts::new(def.name, def.help));
    }
    Err(mismatch(def))
}

/// The bucket bounds of a histogram.
pub(super) fn bounds(def: MetricDef) -> Result<&'static [f64]> {
    match def.kind {
        Kind::Histogram(bounds) => Ok(bounds),
        Kind::Counter | Kind::Gauge => Err(mismatch(def)),
    }
}

fn mismatch(def: MetricDef) -> Error {
    let MetricDef {
        name, kind, labels, ..
    } = def;
    Error::Msg(format!("{name} is a {kind:?} with labels {labels:?}"))
}
