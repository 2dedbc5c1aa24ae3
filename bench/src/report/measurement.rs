//! Measurements: each has a name, a unit and a value. Tables in the terminal and on the page, the JSON and plots use them.

use serde::{Deserialize, Serialize};

use super::{numbers::Percentiles, unit::Unit};

/// One measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Name, unique within its row.
    pub name: String,
    /// Value in `unit`; `None` for text, and if nothing was measured.
    pub value: Option<f64>,
    /// Unit of the value: `µs`, `/s`, `MiB`; empty for a count.
    pub unit: String,
    /// The formatted value with its unit; empty if nothing was measured.
    pub text: String,
}

/// Measurements of one item, such as a step or a second. All rows of a table have the same measurements in the same order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the item: `120000/s`; empty for the whole run.
    pub name: String,
    /// Measurements of the item.
    pub measurements: Vec<Measurement>,
}

/// Rows with the same measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Heading.
    pub title: String,
    /// Explanation; may be empty.
    pub note: String,
    /// Rows.
    pub rows: Vec<Row>,
}

/// A raw value.
pub trait Number {
    /// The value as a number; `None` if nothing was measured.
    fn number(self) -> Option<f64>;
}

impl Number for f64 {
    fn number(self) -> Option<f64> {
        self.is_finite().then_some(self)
    }
}

impl Number for u64 {
    fn number(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl<N: Number> Number for Option<N> {
    fn number(self) -> Option<f64> {
        self.and_then(N::number)
    }
}

impl Unit {
    /// A measurement in this unit, from a raw number.
    pub fn of(self, name: &str, value: impl Number) -> Measurement {
        let value = value.number();
        Measurement {
            name: name.to_owned(),
            value: value.map(|raw| raw * self.scale),
            unit: self.name.to_owned(),
            text: value.map_or_else(String::new, self.format),
        }
    }

    /// The `shown` percentiles of times in microseconds, with `prefix` before their names: `latency p99`.
    pub fn percentiles(
        self,
        prefix: &str,
        times: Option<Percentiles>,
        shown: &[&str],
    ) -> impl Iterator<Item = Measurement> {
        shown.iter().map(move |percentile| {
            let value = times.map(|times| times.get(percentile));
            self.of(&format!("{prefix}{percentile}"), value)
        })
    }
}

impl Measurement {
    /// A measurement whose value is a text.
    pub fn text(name: &str, text: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            text: text.into(),
            ..Self::default()
        }
    }
}

impl Row {
    /// A row with this name.
    pub fn new(
        name: impl Into<String>,
        measurements: impl IntoIterator<Item = Measurement>,
    ) -> Self {
        Self {
            name: name.into(),
            measurements: measurements.into_iter().collect(),
        }
    }

    /// Appends measurements.
    pub fn with(mut self, more: impl IntoIterator<Item = Measurement>) -> Self {
        self.measurements.extend(more);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            data::Report,
            unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
        },
        *,
    };

    fn step(name: &str, accepted: Option<f64>, micros: f64) -> Row {
        let measurements = [
            RATE.of("accepted", accepted),
            CPU.of("CPU per cookie", micros),
            COUNT.of("unsent", None::<u64>),
        ];
        let delivery = MILLIS.of("delivery p99", 1_500_u64);
        Row::new(name, measurements).with([delivery])
    }

    #[track_caller]
    fn check(table: &Table, lines: &[&str]) {
        let text = table.text();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.lines().map(words).collect::<Vec<_>>(), lines);
    }

    #[test]
    fn rows_become_a_table_and_named_measurements() {
        let mut report = Report::new("fan-out", "Rows");
        let rows = [step("×2", Some(12_345.0), 1.5), step("×1", None, 0.5)];
        report.add("Steps", "", rows);
        report.add("Nothing", "", []);
        let [table] = report.tables.as_slice() else {
            panic!("{:?}", report.tables);
        };
        check(
            table,
            &[
                "accepted CPU delivery",
                "per p99",
                "cookie",
                "×2 12 345/s 1.500 µs 1.50 ms",
                "×1 0.500 µs 1.50 ms",
            ],
        );
        assert_eq!(report.value("×2: delivery p99"), Some(1.5));
        assert_eq!(report.value("×1: accepted"), None);
    }

    #[test]
    fn single_row_is_printed_as_a_list() {
        let mut report = Report::new("load", "Facts");
        let memory = MEBIBYTES.of("memory", 3_u64 << 20);
        let facts = [COUNT.of("unsent", None::<u64>), memory];
        report.add("Facts", "", [Row::new("", facts)]);
        check(&report.tables[0], &["memory 3.0 MiB"]);
        assert_eq!(report.value("memory"), Some(3.0));
    }
}
