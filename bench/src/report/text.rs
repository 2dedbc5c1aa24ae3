//! The report as text: tables, findings and failed checks.

use comfy_table::{Cell, CellAlignment, presets::NOTHING};

use super::{
    data::Report,
    measurement::{Measurement, Table},
};

impl Report {
    /// The summary for the terminal.
    pub fn summary(&self) -> String {
        let mut lines = vec![self.title.clone(), String::new(), self.tables_text()];
        lines.extend(self.findings.iter().cloned());
        lines.extend(
            self.failures
                .iter()
                .map(|failure| format!("FAILED    {failure}")),
        );
        lines.join("\n")
    }

    /// All tables, each with its heading and note, and an empty line after it.
    pub(super) fn tables_text(&self) -> String {
        let mut lines = Vec::new();
        for table in &self.tables {
            lines.push(table.title.to_uppercase());
            lines.extend((!table.note.is_empty()).then(|| table.note.clone()));
            lines.extend([table.text(), String::new()]);
        }
        lines.join("\n")
    }
}

impl Table {
    /// A table with one heading word per line and without empty columns. A single row is printed as a list, one
    /// measurement per line.
    pub(super) fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        if let [row] = self.rows.as_slice() {
            if !row.name.is_empty() {
                table.set_header(["", &row.name]);
            }
            for measurement in row.measurements.iter().filter(|it| !it.text.is_empty()) {
                table.add_row([Cell::new(&measurement.name), cell(measurement)]);
            }
            return table.trim_fmt();
        }
        let rows = || self.rows.iter();
        let has_names = rows().any(|row| !row.name.is_empty());
        let columns = rows().next().map_or(0, |row| row.measurements.len());
        let is_shown = |at: &usize| rows().any(|row| !row.measurements[*at].text.is_empty());
        let shown: Vec<_> = (0..columns).filter(is_shown).collect();
        for row in rows() {
            let measurements = || shown.iter().map(|at| &row.measurements[*at]);
            if table.header().is_none() {
                let headings =
                    measurements().map(|measurement| measurement.name.replace(' ', "\n"));
                table.set_header(has_names.then(String::new).into_iter().chain(headings));
            }
            let name = has_names.then(|| Cell::new(&row.name));
            table.add_row(name.into_iter().chain(measurements().map(cell)));
        }
        table.trim_fmt()
    }
}

fn cell(measurement: &Measurement) -> Cell {
    Cell::new(&measurement.text).set_alignment(match measurement.value {
        Some(_) => CellAlignment::Right,
        None => CellAlignment::Left,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            measurement::Row,
            unit::{COUNT, MILLIS},
        },
        *,
    };

    #[test]
    fn tables_have_columns_except_empty_ones() {
        let mut report = Report::new("e2e", "Made up");
        report.findings = vec!["it kept up".to_owned()];
        report.failures = vec!["it broke".to_owned()];
        let row = |name: &str, micros: u64| {
            let measurements = [
                COUNT.of("lost", None::<u64>),
                MILLIS.of("stored, p99", micros),
                Measurement::text("sustained", "yes"),
            ];
            Row::new(name, measurements)
        };
        report.add(
            "Steps",
            "How to read it.",
            [row("one", 7), row("another", 12_500)],
        );
        let expected = "\
Made up

STEPS
How to read it.
          stored,  sustained
          p99
 one         7 µs  yes
 another  12.5 ms  yes

it kept up
FAILED    it broke";
        assert_eq!(report.summary(), expected);
    }
}
