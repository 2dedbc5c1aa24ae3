//! What counts a figure: the kinds of handles that a component keeps.

use metric_defs::{Kind, MetricDef};
use prometheus::{
    Error, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Result, core::Collector,
};

/// What counts a figure; clones count the same.
pub trait Handle: Collector + Clone + 'static {
    /// A new one, at zero.
    ///
    /// # Errors
    /// When the figure is of another kind, or has labels where this has none, or the other way round.
    fn of(figure: MetricDef) -> Result<Self>;
}

impl Handle for IntCounter {
    fn of(figure: MetricDef) -> Result<Self> {
        Self::with_opts(single(figure, Kind::Counter)?)
    }
}

impl Handle for IntCounterVec {
    fn of(figure: MetricDef) -> Result<Self> {
        Self::new(labelled(figure, Kind::Counter)?, figure.labels)
    }
}

impl Handle for IntGauge {
    fn of(figure: MetricDef) -> Result<Self> {
        Self::with_opts(single(figure, Kind::Gauge)?)
    }
}

impl Handle for IntGaugeVec {
    fn of(figure: MetricDef) -> Result<Self> {
        Self::new(labelled(figure, Kind::Gauge)?, figure.labels)
    }
}

impl Handle for Histogram {
    fn of(figure: MetricDef) -> Result<Self> {
        let buckets = bounds(figure)?.to_vec();
        let common_opts = single(figure, figure.kind)?;
        Self::with_opts(HistogramOpts {
            common_opts,
            buckets,
        })
    }
}

fn single(figure: MetricDef, kind: Kind) -> Result<Opts> {
    opts(figure, figure.kind == kind && figure.labels.is_empty())
}

fn labelled(figure: MetricDef, kind: Kind) -> Result<Opts> {
    opts(figure, figure.kind == kind && !figure.labels.is_empty())
}

fn opts(figure: MetricDef, is_meant: bool) -> Result<Opts> {
    if is_meant {
        return Ok(Opts::new(figure.name, figure.help));
    }
    Err(other_kind(figure))
}

/// The bounds of a histogram's buckets.
pub(super) fn bounds(figure: MetricDef) -> Result<&'static [f64]> {
    match figure.kind {
        Kind::Histogram(bounds) => Ok(bounds),
        Kind::Counter | Kind::Gauge => Err(other_kind(figure)),
    }
}

fn other_kind(figure: MetricDef) -> Error {
    let MetricDef {
        name, kind, labels, ..
    } = figure;
    Error::Msg(format!("{name} is a {kind:?} with labels {labels:?}"))
}
