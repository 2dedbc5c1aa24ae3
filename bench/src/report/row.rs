//! Measured figures, each described once: table cells, compared figures and lines of plots are all made from them.

use super::{Better, Column, Figure, Percentiles, Report, Series, Table, unit::Unit};

/// One measured figure.
#[derive(Debug, Clone)]
pub struct Measure {
    /// Heads its column, and ends the name of the compared figure.
    name: String,
    content: Content,
    /// Whether it is compared with other runs, and then which way is an improvement.
    better: Option<Better>,
    /// The same over equal parts of the run.
    samples: Vec<f64>,
}

#[derive(Debug, Clone)]
enum Content {
    /// NaN when there was nothing to measure.
    Number(f64, Unit),
    Words(String),
}

/// Measures of one thing, such as a step or a second; things of one kind have the same measures in the same order.
#[derive(Debug, Clone)]
pub struct Row {
    /// Before the names of its compared figures: `120000/s: `.
    prefix: String,
    measures: Vec<Measure>,
    /// The line of a plot that it is a point of.
    line: String,
    /// Where it is on that line.
    x: f64,
}

/// What can be the value of a measure.
pub trait Number {
    /// As a number; NaN when there was nothing to measure.
    fn number(self) -> f64;
}

impl Number for f64 {
    fn number(self) -> f64 {
        self
    }
}

impl Number for u64 {
    fn number(self) -> f64 {
        self as f64
    }
}

impl Number for usize {
    fn number(self) -> f64 {
        self as f64
    }
}

impl<N: Number> Number for Option<N> {
    fn number(self) -> f64 {
        self.map_or(f64::NAN, N::number)
    }
}

impl Measure {
    /// A figure in the unit's raw measure; only in tables and plots until it is said to be compared.
    #[must_use]
    pub fn new(name: &str, value: impl Number, unit: Unit) -> Self {
        Self {
            name: name.to_owned(),
            content: Content::Number(value.number(), unit),
            better: None,
            samples: Vec::new(),
        }
    }

    /// Words in a table.
    #[must_use]
    pub fn words(name: &str, words: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            content: Content::Words(words.into()),
            better: None,
            samples: Vec::new(),
        }
    }

    /// The same, compared: more is better.
    #[must_use]
    pub fn higher(self) -> Self {
        self.compared(Better::Higher)
    }

    /// The same, compared: less is better.
    #[must_use]
    pub fn lower(self) -> Self {
        self.compared(Better::Lower)
    }

    /// The same, compared.
    #[must_use]
    pub fn compared(self, better: Better) -> Self {
        Self {
            better: Some(better),
            ..self
        }
    }

    /// The same with its samples, in the same raw measure.
    #[must_use]
    pub fn sampled(self, samples: impl IntoIterator<Item = f64>) -> Self {
        Self {
            samples: samples.into_iter().collect(),
            ..self
        }
    }

    /// The figure that is compared, if it is and there was something to measure.
    fn figure(&self, prefix: &str) -> Option<Figure> {
        let Content::Number(value, unit) = self.content else {
            return None;
        };
        let samples = self.samples.iter().map(|sample| sample * unit.scale);
        let better = self.better.filter(|_| value.is_finite())?;
        let name = format!("{prefix}{}", self.name);
        Some(Figure::new(name, unit.name, value * unit.scale, better).with_samples(samples))
    }

    fn cell(&self) -> String {
        match &self.content {
            Content::Number(value, unit) if value.is_finite() => (unit.write)(*value),
            Content::Number(..) => String::new(),
            Content::Words(words) => words.clone(),
        }
    }

    fn column(&self) -> Column {
        match &self.content {
            Content::Number(_, unit) => Column::number(&self.heading(*unit)),
            Content::Words(_) => Column::words(&self.name),
        }
    }

    /// The name, with the unit when cells are without.
    fn heading(&self, unit: Unit) -> String {
        if unit.is_in_heading {
            format!("{}, {}", self.name, unit.name)
        } else {
            self.name.clone()
        }
    }
}

impl Unit {
    /// A measure in this unit, from its raw number.
    #[must_use]
    pub fn of(self, name: &str, value: impl Number) -> Measure {
        Measure::new(name, value, self)
    }

    /// Those percentiles that are `shown`, each with `prefix` before its name: `latency p99`. They are microseconds; those of
    /// `compared` are compared, and less is better.
    pub fn percentiles(
        self,
        prefix: &str,
        times: Option<Percentiles>,
        shown: &[&str],
        compared: &[&str],
    ) -> impl Iterator<Item = Measure> {
        shown.iter().map(move |percentile| {
            let value = times.and_then(|times| times.named(percentile));
            let measure = self.of(&format!("{prefix}{percentile}"), value);
            if compared.contains(percentile) {
                measure.lower()
            } else {
                measure
            }
        })
    }
}

impl Row {
    /// Measures whose compared figures have names that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<String>, measures: impl IntoIterator<Item = Measure>) -> Self {
        Self {
            prefix: prefix.into(),
            measures: measures.into_iter().collect(),
            line: String::new(),
            x: f64::NAN,
        }
    }

    /// The same with more.
    #[must_use]
    pub fn and(mut self, more: impl IntoIterator<Item = Measure>) -> Self {
        self.measures.extend(more);
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

    /// The raw number of a measure; NaN when it has none.
    fn number(&self, name: &str) -> (f64, f64) {
        let measure = self.measures.iter().find(|measure| measure.name == name);
        match measure.map(|measure| &measure.content) {
            Some(Content::Number(value, unit)) => (*value, unit.scale),
            _ => (f64::NAN, 1.0),
        }
    }
}

/// What was measured for `name`, row by row, as samples of a [`Measure`].
pub fn samples(rows: &[Row], name: &str) -> impl Iterator<Item = f64> {
    let numbers = rows.iter().map(|row| row.number(name).0);
    numbers.filter(|number| number.is_finite())
}

/// The measures of these names as lines through the points of their rows; those without any value are left out.
///
/// A line is called after its rows, or its measure, or both where that tells lines apart.
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
            .map(|row| {
                let (value, scale) = row.number(name);
                (row.x, value * scale)
            })
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
    /// Adds rows: a table, unless there is none, with a note on how to read it, and their compared figures.
    pub fn add_rows(&mut self, title: &str, note: &str, rows: &[Row]) {
        for row in rows {
            let figures = row.measures.iter();
            self.figures
                .extend(figures.filter_map(|measure| measure.figure(&row.prefix)));
        }
        let Some(first) = rows.first() else {
            return;
        };
        let cells = |row: &Row| row.measures.iter().map(Measure::cell).collect();
        self.tables.push(Table {
            title: title.to_owned(),
            note: (!note.is_empty()).then(|| note.to_owned()),
            columns: first.measures.iter().map(Measure::column).collect(),
            rows: rows.iter().map(cells).collect(),
        });
    }

    /// Adds measures of the whole run: a table with a line for each that has a value, and their compared figures.
    pub fn add_facts(&mut self, title: &str, facts: &[Measure]) {
        self.figures
            .extend(facts.iter().filter_map(|fact| fact.figure("")));
        let line = |fact: &Measure| vec![fact.column().name, fact.cell()];
        let lines = facts.iter().map(line);
        self.tables.push(Table {
            title: title.to_owned(),
            note: None,
            columns: vec![Column::words(""), Column::number("")],
            rows: lines.filter(|line| !line[1].is_empty()).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::unit::{COUNT, CPU, MEBIBYTES, MILLIS, RATE},
        *,
    };

    fn step(line: &str, x: f64, accepted: Option<f64>, micros: f64) -> Row {
        let measures = [
            Measure::words("call", line),
            RATE.of("accepted", accepted).higher().sampled([1.0, 2.0]),
            CPU.of("CPU per cookie", micros),
        ];
        let delivery = MILLIS.of("delivery p99", 1_500_u64).lower();
        Row::new(format!("×{x}: "), measures)
            .and([delivery.sampled([500.0])])
            .at(line, x)
    }

    #[test]
    fn rows_are_a_table_and_figures() {
        let mut report = Report::new("fanout", "Rows");
        let rows = [
            step("a", 2.0, Some(12_345.0), 1.5),
            step("a", 1.0, None, 0.5),
        ];
        report.add_rows("Steps", "", &rows);
        report.add_rows("Nothing", "", &[]);
        let [table] = report.tables.as_slice() else {
            panic!("{:?}", report.tables);
        };
        let columns = table
            .columns
            .iter()
            .map(|column| (column.name.as_str(), column.is_number));
        let expected = [
            ("call", false),
            ("accepted", true),
            ("CPU per cookie, µs", true),
            ("delivery p99", true),
        ];
        assert!(columns.eq(expected), "{:?}", table.columns);
        assert_eq!(table.rows[0], ["a", "12 345/s", "1.500", "1.50 ms"]);
        assert_eq!(table.rows[1], ["a", "", "0.500", "1.50 ms"]);
        let names = report.figures.iter().map(|figure| figure.name.as_str());
        let expected = ["×2: accepted", "×2: delivery p99", "×1: delivery p99"];
        assert!(names.eq(expected), "{:?}", report.figures);
        let delivery = Figure::new("×2: delivery p99", "ms", 1.5, Better::Lower);
        assert_eq!(report.figures[1], delivery.with_samples([0.5]));
    }

    #[test]
    fn facts_without_a_value_are_left_out() {
        let mut report = Report::new("load", "Facts");
        let memory = MEBIBYTES.of("memory", 3_u64 << 20).lower();
        let facts = [COUNT.of("unsent", None::<u64>).lower(), memory];
        report.add_facts("Facts", &facts);
        assert_eq!(report.tables[0].rows, [["memory, MiB", "3.0"]]);
        assert_eq!(
            report.figures,
            [Figure::new("memory", "MiB", 3.0, Better::Lower)]
        );
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
