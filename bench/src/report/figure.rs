//! What a run measured: figures, each declared once with its name, unit, value and direction.
//!
//! The tables of the terminal and of the page, the JSON, the comparison and the plots are all made from the same figures.

use serde::{Deserialize, Serialize};

use super::{Percentiles, Report, Series, unit::Unit};

/// One measured figure.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
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
    pub figures: Vec<Figure>,
    /// The line of a plot that it is a point of.
    #[serde(skip)]
    line: String,
    /// Its place on that line.
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

impl Number for usize {
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
    pub fn of(self, name: &str, value: impl Number) -> Figure {
        let value = value.number();
        Figure {
            name: name.to_owned(),
            value: value.map(|raw| raw * self.scale),
            unit: self.name.to_owned(),
            text: value.map_or_else(String::new, self.write),
            ..Figure::default()
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
    ) -> impl Iterator<Item = Figure> {
        shown.iter().map(move |percentile| {
            let value = times.and_then(|times| times.named(percentile));
            let figure = self.of(&format!("{prefix}{percentile}"), value);
            if compared.contains(percentile) {
                figure.lower()
            } else {
                figure
            }
        })
    }
}

impl Figure {
    /// Words in a table.
    #[must_use]
    pub fn words(name: &str, words: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            text: words.into(),
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
    pub fn sampled(self, samples: impl IntoIterator<Item = f64>) -> Self {
        Self {
            samples: samples.into_iter().filter(|it| it.is_finite()).collect(),
            ..self
        }
    }
}

impl Row {
    /// Figures of the thing with this name.
    #[must_use]
    pub fn new(name: impl Into<String>, figures: impl IntoIterator<Item = Figure>) -> Self {
        Self {
            name: name.into(),
            figures: figures.into_iter().collect(),
            ..Self::default()
        }
    }

    /// The same with more.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = Figure>) -> Self {
        self.figures.extend(more);
        self
    }

    /// The same as a point of the line of this name, at `x`.
    #[must_use]
    pub fn at(self, line: impl Into<String>, x: f64) -> Self {
        Self {
            line: line.into(),
            x,
            ..self
        }
    }

    fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|it| it.name == name)?.value
    }
}

/// The values of the figure `name`, row by row, as samples of another figure.
pub fn samples(rows: &[Row], name: &str) -> impl Iterator<Item = f64> {
    rows.iter().filter_map(move |row| row.value(name))
}

/// The figures of these names as lines through the points of their rows; those without any value are left out.
///
/// A line is called after its rows, or its figure, or both where that tells lines apart.
#[must_use]
pub fn lines(rows: &[Row], names: &[&str]) -> Vec<Series> {
    let mut of_rows: Vec<&str> = Vec::new();
    for row in rows {
        if !of_rows.contains(&row.line.as_str()) {
            of_rows.push(&row.line);
        }
    }
    let all = names
        .iter()
        .flat_map(|name| of_rows.iter().map(move |line| (*name, *line)));
    let series = all.map(|(name, line)| {
        let of_it = rows.iter().filter(|row| row.line == line);
        let mut points: Vec<_> = of_it
            .map(|row| (row.x, row.value(name).unwrap_or(f64::NAN)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let name = match (line, names.len()) {
            ("", _) => name.to_owned(),
            (_, 1) => line.to_owned(),
            _ => format!("{line}, {name}"),
        };
        Series { name, points }
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
    pub fn figures(&self) -> impl Iterator<Item = (String, &Figure)> {
        let rows = self.tables.iter().flat_map(|table| &table.rows);
        rows.flat_map(|row| {
            row.figures.iter().map(|figure| match row.name.as_str() {
                "" => (figure.name.clone(), figure),
                name => (format!("{name}: {}", figure.name), figure),
            })
        })
    }

    /// The value of the figure with this full name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures().find(|(full, _)| full == name)?.1.value
    }
}

/// A table as a reader sees it.
pub(super) struct Grid {
    pub(super) headings: Vec<String>,
    pub(super) lines: Vec<Vec<Cell>>,
}

/// A cell of a [`Grid`].
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) is_number: bool,
}

impl Cell {
    fn words(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            is_number: false,
        }
    }
}

impl From<&Figure> for Cell {
    fn from(figure: &Figure) -> Self {
        Self {
            text: figure.text.clone(),
            is_number: figure.value.is_some(),
        }
    }
}

impl Table {
    /// A line for each row, without figures that no row has; of a single row, a line for each figure.
    pub(super) fn grid(&self) -> Grid {
        if let [row] = self.rows.as_slice() {
            let figures = row.figures.iter().filter(|it| !it.text.is_empty());
            return Grid {
                headings: vec![String::new(), row.name.clone()],
                lines: figures
                    .map(|it| vec![Cell::words(&it.name), it.into()])
                    .collect(),
            };
        }
        let rows = || self.rows.iter();
        let has_names = rows().any(|row| !row.name.is_empty());
        let first = rows().next().map_or(&[][..], |row| &row.figures);
        let is_shown = |at: &usize| rows().any(|row| !row.figures[*at].text.is_empty());
        let shown: Vec<_> = (0..first.len()).filter(is_shown).collect();
        let names = shown.iter().map(|at| first[*at].name.clone());
        let line = |row: &Row| {
            let name = has_names.then(|| Cell::words(&row.name));
            let cells = shown.iter().map(|at| (&row.figures[*at]).into());
            name.into_iter().chain(cells).collect()
        };
        Grid {
            headings: has_names
                .then(String::new)
                .into_iter()
                .chain(names)
                .collect(),
            lines: rows().map(line).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
        *,
    };

    fn step(line: &str, x: f64, accepted: Option<f64>, micros: f64) -> Row {
        let figures = [
            RATE.of("accepted", accepted).higher().sampled([1.0, 2.0]),
            CPU.of("CPU per cookie", micros),
            COUNT.of("unsent", None::<u64>),
        ];
        let delivery = MILLIS.of("delivery p99", 1_500_u64).lower();
        Row::new(format!("×{x}"), figures)
            .and([delivery.sampled([0.5, f64::NAN])])
            .at(line, x)
    }

    #[track_caller]
    fn check(table: &Table, headings: &[&str], lines: &[&[&str]]) {
        let grid = table.grid();
        assert_eq!(grid.headings, headings);
        let text = |line: &Vec<Cell>| line.iter().map(|it| it.text.clone()).collect::<Vec<_>>();
        assert_eq!(grid.lines.iter().map(text).collect::<Vec<_>>(), lines);
    }

    #[test]
    fn rows_are_a_table_and_figures() {
        let mut report = Report::new("fanout", "Rows");
        let rows = [
            step("a", 2.0, Some(12_345.0), 1.5),
            step("a", 1.0, None, 0.5),
        ];
        report.add("Steps", "", rows);
        report.add("Nothing", "", []);
        let [table] = report.tables.as_slice() else {
            panic!("{:?}", report.tables);
        };
        check(
            table,
            &["", "accepted", "CPU per cookie", "delivery p99"],
            &[
                &["×2", "12 345/s", "1.500 µs", "1.50 ms"],
                &["×1", "", "0.500 µs", "1.50 ms"],
            ],
        );
        assert_eq!(report.value("×2: delivery p99"), Some(1.5));
        assert_eq!(report.value("×1: accepted"), None);
        assert_eq!(table.rows[0].figures[3].samples, [0.5]);
    }

    #[test]
    fn single_row_is_a_list_of_its_figures() {
        let mut report = Report::new("load", "Facts");
        let memory = MEBIBYTES.of("memory", 3_u64 << 20).lower();
        let facts = [COUNT.of("unsent", None::<u64>).lower(), memory];
        report.add("Facts", "", [Row::new("", facts)]);
        check(&report.tables[0], &["", ""], &[&["memory", "3.0 MiB"]]);
        assert_eq!(report.value("memory"), Some(3.0));
    }

    #[test]
    fn lines_go_through_the_rows_in_the_order_of_x() {
        let rows = [
            step("a", 2.0, Some(20.0), 1.0),
            step("a", 1.0, Some(10.0), 2.0),
            step("b", 1.0, None, 3.0),
        ];
        let one = lines(&rows, &["accepted"]);
        assert_eq!(one, [Series::new("a", [(1.0, 10.0), (2.0, 20.0)])]);
        let names: Vec<_> = lines(&rows, &["accepted", "CPU per cookie"])
            .into_iter()
            .map(|series| series.name)
            .collect();
        assert_eq!(
            names,
            ["a, accepted", "a, CPU per cookie", "b, CPU per cookie"]
        );
        assert_eq!(lines(&rows[..1], &["delivery p99"])[0].points, [(2.0, 1.5)]);
        assert!(samples(&rows, "accepted").eq([20.0, 10.0]));
    }
}
