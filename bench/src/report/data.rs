//! A report as plain data.

use serde::{Deserialize, Serialize};

use super::{
    environment::Environment,
    measurement::{Measurement, Row, Table},
    plot::Plot,
};

/// Result of one run of a scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The subcommand: `e2e`.
    pub scenario: String,
    /// Summary of the run in one line.
    pub title: String,
    /// Conclusions in sentences, most important first.
    pub findings: Vec<String>,
    /// Failed checks; empty if the run passed.
    pub failures: Vec<String>,
    /// End time, command line, machine and program versions of the run.
    pub environment: Environment,
    /// Duration of the run.
    pub seconds: f64,
    /// Tables of all measurements, in display order.
    pub tables: Vec<Table>,
    /// Plots in display order. They are written but not read back.
    #[serde(skip_deserializing)]
    pub plots: Vec<Plot>,
}

impl Report {
    /// An empty report of this run.
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
        }
    }

    /// Adds a table; does nothing without rows.
    pub fn add(&mut self, title: &str, note: &str, rows: impl Into<Vec<Row>>) {
        let rows = rows.into();
        if !rows.is_empty() {
            self.tables.push(Table {
                title: title.to_owned(),
                note: note.to_owned(),
                rows,
            });
        }
    }

    /// All measurements, each with its full name: row name and own name, as in `120000/s: accepted`.
    pub fn measurements(&self) -> impl Iterator<Item = (String, &Measurement)> {
        let rows = self.tables.iter().flat_map(|table| &table.rows);
        rows.flat_map(|row| {
            row.measurements
                .iter()
                .map(|measurement| match row.name.as_str() {
                    "" => (measurement.name.clone(), measurement),
                    name => (format!("{name}: {}", measurement.name), measurement),
                })
        })
    }

    /// The value of the measurement with this full name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.measurements().find(|(full, _)| full == name)?.1.value
    }
}
