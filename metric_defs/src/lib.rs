//! What the processes tell of themselves, each fact once: a metric's name, help, labels and buckets, and the sums that hold.
//!
//! The code that counts a figure and the code that reads it name the same constant: the component that registers it, the programs that
//! start the processes and scrape them, and their tests. `docs/metrics.md` is written from what is registered. What every
//! process tells under a name that begins with its own (`<process>_build_info` and the like) is in `runtime`, which registers it ([`MetricDef::of`]).
//!
//! Names are `<process>_<noun>_<unit>`, `_total` for what only grows, in seconds, bytes and cookies.

pub mod buckets;
pub mod consumer;
pub mod equations;
pub mod limiter;
pub mod process;
pub mod producer;

use std::fmt;

pub use equations::Equation;

/// All that is said of a metric, but for its values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricDef {
    /// Its name, the unit included.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts observations, those up to each of these bounds; they rise.
    Histogram(&'static [f64]),
}

impl MetricDef {
    /// A value that only grows.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Counter)
    }

    /// A value that goes up and down.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Gauge)
    }

    /// How often each of many values was observed, up to these bounds.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        Self::new(name, help, Kind::Histogram(bounds))
    }

    /// The same, with a series for each combination of these labels' values.
    #[must_use]
    pub const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// The same, of one process or port: its name begins with this. Keeps that name for the life of the process.
    #[must_use]
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

/// Its name.
impl fmt::Display for MetricDef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// Its name, which is all that a reader needs of it.
impl AsRef<str> for MetricDef {
    fn as_ref(&self) -> &str {
        self.name
    }
}
