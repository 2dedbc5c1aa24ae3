//! Definitions of metrics (name, help, labels, buckets) and their balance equations.
//!
//! Components that register a metric, programs that scrape it, and tests use the same constant. `docs/metrics.md` is generated
//! from the registered metrics. Metrics of every process, whose names begin with the process (`<process>_build_info`), are defined
//! in `runtime` ([`MetricDef::of`]).
//!
//! Names are `<process>_<noun>_<unit>`, with `_total` for counters; units are seconds, bytes and cookies.
//!
//! ```
//! use metric_defs::MetricDef;
//!
//! const DROPPED: MetricDef =
//!     MetricDef::counter("log_lines_dropped_total", "Log lines dropped.").by(&["reason"]);
//!
//! let dropped = DROPPED.of("producer");
//! assert_eq!(dropped.name, "producer_log_lines_dropped_total");
//! assert_eq!(dropped.labels, ["reason"]);
//! ```

/// Defines metrics as constants: kind, name, a histogram's bounds (from [`buckets`]), labels if any, and help text.
macro_rules! metrics {
    ($($id:ident $kind:ident $name:literal $(in $bounds:ident)? $(by [$($label:literal),+])? $help:literal)+) => {
        $(
            #[doc = $help]
            pub const $id: $crate::MetricDef =
                $crate::MetricDef::$kind($name, $help $(, $crate::buckets::$bounds)?)$(.by(&[$($label),+]))?;
        )+
    };
}

pub mod buckets;
pub mod consumer;
pub mod equations;
pub mod limiter;
pub mod process;
pub mod producer;
pub mod revalidator;

use std::fmt;

pub use equations::Equation;

/// The definition of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricDef {
    /// Its name, including the unit.
    pub name: &'static str,
    /// Its help text.
    pub help: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its label names.
    pub labels: &'static [&'static str],
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts of observations up to each of these ascending bounds.
    Histogram(&'static [f64]),
}

impl MetricDef {
    /// A counter without labels.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Counter)
    }

    /// A gauge without labels.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Gauge)
    }

    /// A histogram without labels, with these ascending bounds.
    pub const fn histogram(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        Self::new(name, help, Kind::Histogram(bounds))
    }

    /// The same metric with labels.
    pub const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// The same metric with a process or port as prefix of its name. Leaks the memory of the new name.
    pub fn of(self, prefix: &str) -> Self {
        let name = format!("{prefix}_{}", self.name).leak();
        Self { name, ..self }
    }

    const fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Self {
            name,
            help,
            kind,
            labels: &[],
        }
    }
}

/// Displays the name.
impl fmt::Display for MetricDef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// The name, for functions that read samples.
impl AsRef<str> for MetricDef {
    fn as_ref(&self) -> &str {
        self.name
    }
}
