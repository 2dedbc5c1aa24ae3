//! What a run measured: figures, each declared once with its name, unit, value and direction.
//!
//! The tables of the terminal and of the page, the JSON, the comparison and the plots are all made from the same figures.

use serde::{Deserialize, Serialize};

use super::{Percentiles, Report, Series, unit::Unit};

/// One measured figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Unique within its row.
    pub name: String,
    /// In the unit; `None` for words, and when there was nothing to measure.
    pub value: Option<f64>,
    /// Unit of the value: `µs`, `/s`, `MiB`; empty for a plain count.
    pub unit: String,
    /// The value for a person, with its unit; empty when there was nothing to measure.
    pub text: String,
    /// The direction that is an improvement; only figures that have one are compared.
    pub better: Option<Better>,
    /// The same figure of equal parts of the run, such as its seconds, in the same unit: how much it varies by itself.
    pub samples: Vec<f64>,
}

/// The direction in which a figure improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// Figures of one thing, such as a step or a second; the rows of a table have the same figures in the same order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The thing: `120000/s`; empty for the whole run.
    pub name: String,
    /// Its figures.
    pub measurements: Vec<Measurement>,
    /// Its place on the lines of a plot.
    #[serde(skip)]
    x: f64,
}

/// Rows with the same figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Heading.
    pub title: String,
    /// How to read it; may be empty.
    pub note: String,
    /// Rows.
    pub rows: Vec<Row>,
}

/// The value of a figure.
pub trait Number {
    /// As a number; `None` when there was nothing to measure.
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
    /// A figure in this unit, from its raw number.
    #[must_use]
    pub fn of(self, name: &str, value: impl Number) -> Measurement {
        let value = value.number();
        Measurement {
            name: name.to_owned(),
            value: value.map(|raw| raw * self.scale),
            unit: self.name.to_owned(),
            text: value.map_or_else(String::new, self.write),
            ..Measurement::default()
        }
    }

    /// Those percentiles that are `shown`, each with `prefix` before its name: `latency p99`. They are microseconds; those of
    /// `compared` are compared, and less is better.
    pub fn percentiles(
        self,
        prefix: &str,
        times: Option<Percentiles>,
        shown: &[&str],
        compared: &[&str],
    ) -> impl Iterator<Item = Measurement> {
        shown.iter().map(move |percentile| {
            let value = times.and_then(|times| times.get(percentile));
            let measurement = self.of(&format!("{prefix}{percentile}"), value);
            if compared.contains(percentile) {
                measurement.lower()
            } else {
                measurement
            }
        })
    }
}

impl Measurement {
    /// Words in a table.
    #[must_use]
    pub fn text(name: &str, text: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            text: text.into(),
            ..Self::default()
        }
    }

    /// The same, compared: more is better.
    #[must_use]
    pub fn higher(self) -> Self {
        Self {
            better: Some(Better::Higher),
            ..self
        }
    }

    /// The same, compared: less is better.
    #[must_use]
    pub fn lower(self) -> Self {
        Self {
            better: Some(Better::Lower),
            ..self
        }
    }

    /// The same with its samples, in the figure's unit.
    #[must_use]
    pub fn with_samples(self, samples: impl IntoIterator<Item = f64>) -> Self {
        Self {
            samples: samples.into_iter().filter(|it| it.is_finite()).collect(),
            ..self
        }
    }
}

impl Row {
    /// Figures of the thing with this name.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        measurements: impl IntoIterator<Item = Measurement>,
    ) -> Self {
        Self {
            name: name.into(),
            measurements: measurements.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The same with more.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = Measurement>) -> Self {
        self.measurements.extend(more);
        self
    }

    /// The same as a point of lines, at `x`.
    #[must_use]
    pub fn at(self, x: f64) -> Self {
        Self { x, ..self }
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.measurements.iter().find(|it| it.name == name)?.value
    }
}

/// The values of the figure `name`, row by row, as samples of another figure.
pub fn samples(rows: &[Row], name: &str) -> impl Iterator<Item = f64> {
    rows.iter().filter_map(move |row| row.value(name))
}

/// The figures of these names as lines through the points of their rows; those without any value are left out.
#[must_use]
pub fn lines(rows: &[Row], names: &[&str]) -> Vec<Series> {
    let series = names.iter().map(|name| {
        let point = |row: &Row| (row.x, row.value(name).unwrap_or(f64::NAN));
        let mut points: Vec<_> = rows.iter().map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series::new(name, points)
    });
    series
        .filter(|series| series.points.iter().any(|(_, y)| y.is_finite()))
        .collect()
}

impl Report {
    /// Adds a table, unless it has no row.
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

    /// All figures, each with the name of its row before its own: `120000/s: accepted`.
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

    /// The value of the figure with this full name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.measurements().find(|(full, _)| full == name)?.1.value
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
        *,
    };

    fn step(x: f64, accepted: Option<f64>, micros: f64) -> Row {
        let measurements = [
            RATE.of("accepted", accepted)
                .higher()
                .with_samples([1.0, 2.0]),
            CPU.of("CPU per cookie", micros),
            COUNT.of("unsent", None::<u64>),
        ];
        let delivery = MILLIS.of("delivery p99", 1_500_u64).lower();
        Row::new(format!("×{x}"), measurements)
            .and([delivery.with_samples([0.5, f64::NAN])])
            .at(x)
    }

    #[track_caller]
    fn check(table: &Table, lines: &[&str]) {
        let text = table.text();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.lines().map(words).collect::<Vec<_>>(), lines);
    }

    #[test]
    fn rows_are_a_table_and_figures() {
        let mut report = Report::new("fanout", "Rows");
        let rows = [step(2.0, Some(12_345.0), 1.5), step(1.0, None, 0.5)];
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
        assert_eq!(table.rows[0].measurements[3].samples, [0.5]);
    }

    #[test]
    fn single_row_is_a_list_of_its_figures() {
        let mut report = Report::new("load", "Facts");
        let memory = MEBIBYTES.of("memory", 3_u64 << 20).lower();
        let facts = [COUNT.of("unsent", None::<u64>).lower(), memory];
        report.add("Facts", "", [Row::new("", facts)]);
        check(&report.tables[0], &["memory 3.0 MiB"]);
        assert_eq!(report.value("memory"), Some(3.0));
    }

    #[test]
    fn lines_go_through_the_rows_in_the_order_of_x() {
        let rows = [step(2.0, Some(20.0), 1.0), step(1.0, Some(10.0), 2.0)];
        let one = lines(&rows, &["accepted", "unsent"]);
        assert_eq!(one, [Series::new("accepted", [(1.0, 10.0), (2.0, 20.0)])]);
        assert_eq!(lines(&rows[..1], &["delivery p99"])[0].points, [(2.0, 1.5)]);
        assert!(samples(&rows, "accepted").eq([20.0, 10.0]));
    }
}
