//! What every scenario leaves behind: findings, figures, tables and plots, in a folder of their own.
//!
//! A [`Report`] is plain data. The scenario fills it in with [rows](Row) of [measures](Measure), from which tables, compared
//! figures and plots are made; how it looks in a terminal, as JSON, as a page or as plots is decided here and nowhere else.

mod environment;
mod folder;
mod gap;
mod numbers;
mod page;
mod plot;
mod row;
mod text;
pub mod unit;

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

pub use self::{
    environment::Environment,
    folder::{ReportFolder, leave},
    numbers::{Percentiles, counted, micros_each, micros_histogram},
    row::{Measure, Number, Row, lines, samples},
};
pub use launcher::numbers::{duration, grouped, per_second, rate};

/// What a run prints, and where its report goes.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Report")]
pub struct ReportArgs {
    /// Folder for the report: new, or empty [default: bench-reports/ and the scenario with the time].
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
    pub faults: Vec<String>,
    /// Where, when and with what it was measured.
    pub environment: Environment,
    /// How long it took.
    #[serde(deserialize_with = "gap::number")]
    pub seconds: f64,
    /// What a comparison with another report looks at.
    pub figures: Vec<Figure>,
    /// Tables, in the order in which they are read.
    pub tables: Vec<Table>,
    /// Plots, likewise; they carry all series.
    pub plots: Vec<Plot>,
    /// The scenario's own outcome, as `--json` prints it.
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
            faults: Vec::new(),
            environment: Environment::of_this_run(),
            seconds: 0.0,
            figures: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            outcome: serde_json::Value::Null,
        }
    }

    /// The same with the scenario's own outcome; a fault when that cannot be written as JSON.
    #[must_use]
    pub fn with_outcome(mut self, outcome: &impl Serialize) -> Self {
        match serde_json::to_value(outcome) {
            Ok(outcome) => self.outcome = outcome,
            Err(error) => self
                .faults
                .push(format!("The outcome is not in this report: {error}.")),
        }
        self
    }
}

/// One measured figure that means the same in every report of its scenario with the same arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Unique within the report, and the same from run to run: `120000/s: producer CPU per cookie`.
    pub name: String,
    /// As it is written behind the number: `µs`, `/s`, `MiB`; empty for a plain count. A figure in `µs` with `CPU` in
    /// its name is CPU time, which varies less than other times do; one with `p99`, `p99.9` or `max` is of a tail, whose
    /// samples say nothing about it.
    pub unit: String,
    /// The figure; NaN when there was nothing to measure, `null` in JSON.
    #[serde(deserialize_with = "gap::number")]
    pub value: f64,
    /// Which way is an improvement.
    pub better: Better,
    /// The same figure measured over equal parts of the run, such as its seconds, as far as there are any: they tell how much it
    /// varies by itself.
    #[serde(deserialize_with = "gap::numbers")]
    pub samples: Vec<f64>,
}

impl Figure {
    /// A figure without samples.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: &str, value: f64, better: Better) -> Self {
        Self {
            name: name.into(),
            unit: unit.to_owned(),
            value,
            better,
            samples: Vec::new(),
        }
    }

    /// The same with its samples.
    #[must_use]
    pub fn with_samples(self, samples: impl IntoIterator<Item = f64>) -> Self {
        Self {
            samples: samples.into_iter().collect(),
            ..self
        }
    }
}

/// Which way a figure improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// Neither; a difference is only a difference.
    Neither,
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Heading.
    pub title: String,
    /// What to know for reading it: units, what was counted where.
    pub note: Option<String>,
    /// Columns.
    pub columns: Vec<Column>,
    /// Rows, each with one cell for a column.
    pub rows: Vec<Vec<String>>,
}

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Heading, with the unit.
    pub name: String,
    /// Numbers are set to the right.
    pub is_number: bool,
}

impl Column {
    /// A column of words.
    #[must_use]
    pub fn words(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_number: false,
        }
    }

    /// A column of numbers.
    #[must_use]
    pub fn number(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_number: true,
        }
    }
}

/// A plot of lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// The name of its file, without ending: `latency`.
    pub name: String,
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
}

impl Plot {
    /// A plot whose file gets this name.
    #[must_use]
    pub fn new(name: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            x,
            y,
            series,
        }
    }

    /// The same over the seconds since the start.
    #[must_use]
    pub fn over_time(name: &str, title: &str, y: Axis, series: Vec<Series>) -> Self {
        Self::new(
            name,
            title,
            Axis::linear("seconds since the start"),
            y,
            series,
        )
    }
}

/// An axis of a [`Plot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows, with the unit: `seconds since the start`.
    pub label: String,
    /// Logarithmic, for values above zero; others are left out.
    pub logarithmic: bool,
}

impl Axis {
    /// An axis in equal steps.
    #[must_use]
    pub fn linear(label: &str) -> Self {
        Self {
            label: label.to_owned(),
            logarithmic: false,
        }
    }

    /// A logarithmic axis.
    #[must_use]
    pub fn logarithmic(label: &str) -> Self {
        Self {
            label: label.to_owned(),
            logarithmic: true,
        }
    }
}

/// One line of a [`Plot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// As it stands in the legend.
    pub name: String,
    /// Points, by rising x. A value that is not finite interrupts the line; in JSON it is `null`.
    #[serde(deserialize_with = "gap::points")]
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
