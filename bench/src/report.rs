//! What every scenario leaves behind: findings, figures, tables and plots, in a directory of their own.
//!
//! A [`Report`] is plain data. The scenario fills it in with [rows](Row) of [figures](Figure), from which tables, comparisons
//! and plots are made; how it looks in a terminal, as JSON, as a page or as plots is decided here and nowhere else.

mod dir;
mod environment;
mod measurement;
mod numbers;
mod page;
mod plot;
mod text;
pub mod unit;

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

pub use self::{
    dir::{ReportDir, write_report},
    environment::Environment,
    measurement::{Better, Measurement, Number, Row, Table, lines, samples},
    numbers::{Micros, Percentiles, micros_per, plural},
};
pub use launcher::numbers::{duration, grouped, per_second, rate};

/// What a run prints, and where its report goes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Report")]
pub struct ReportArgs {
    /// Directory for the report: new, or empty [default: bench-reports/ and the scenario with the time].
    #[arg(long, value_name = "DIR", conflicts_with = "no_report")]
    pub report: Option<PathBuf>,
    /// Write no report.
    #[arg(long)]
    pub no_report: bool,
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    pub json: bool,
}

/// What one run of a scenario found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The scenario, as on the command line: `e2e`.
    pub scenario: String,
    /// What was measured, in one line.
    pub title: String,
    /// What follows from it, in sentences, most important first.
    pub findings: Vec<String>,
    /// What is wrong; empty when all is well.
    pub failures: Vec<String>,
    /// Where, when and with what it was measured.
    pub environment: Environment,
    /// How long it took.
    pub seconds: f64,
    /// Tables of all figures, in the order in which they are read.
    pub tables: Vec<Table>,
    /// Plots, likewise; they carry all series, and are not read back.
    #[serde(skip_deserializing)]
    pub plots: Vec<Plot>,
    /// The scenario's own outcome, where `--json` prints that.
    #[serde(default)]
    pub outcome: serde_json::Value,
}

impl Report {
    /// A report that says nothing yet.
    #[must_use]
    pub fn new(scenario: &str, title: &str) -> Self {
        Self {
            scenario: scenario.to_owned(),
            title: title.to_owned(),
            findings: Vec::new(),
            failures: Vec::new(),
            environment: Environment::of_this_run(),
            seconds: 0.0,
            tables: Vec::new(),
            plots: Vec::new(),
            outcome: serde_json::Value::Null,
        }
    }

    /// The same with the scenario's own outcome.
    ///
    /// # Panics
    /// When that has a map whose keys are not text.
    #[must_use]
    pub fn with_outcome(mut self, outcome: &impl Serialize) -> Self {
        self.outcome = serde_json::to_value(outcome).expect("its keys are text");
        self
    }
}

/// A plot of lines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// What the horizontal axis shows, with the unit: `seconds since the start`.
    pub x: String,
    /// The same of the vertical axis.
    pub y: String,
    /// Whether the vertical axis is logarithmic; values of zero or below are then left out.
    pub logarithmic: bool,
    /// The lines.
    pub series: Vec<Series>,
}

impl Plot {
    /// A plot over the seconds since the start.
    #[must_use]
    pub fn over_time(title: &str, y: &str, series: Vec<Series>) -> Self {
        Self {
            title: title.to_owned(),
            x: "seconds since the start".to_owned(),
            y: y.to_owned(),
            logarithmic: false,
            series,
        }
    }

    /// The same with a logarithmic vertical axis.
    #[must_use]
    pub fn logarithmic(self) -> Self {
        Self {
            logarithmic: true,
            ..self
        }
    }
}

/// One line of a [`Plot`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// As it stands in the legend.
    pub name: String,
    /// Points, by rising x. A value that is not finite interrupts the line; in JSON it is `null`.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A line through these points.
    #[must_use]
    pub fn new(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            points: points.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests;
