//! The report in a terminal: its tables, what follows from them, and what is wrong.

use comfy_table::{Cell, CellAlignment, presets::NOTHING};

use super::{Figure, Report, Table};

impl Report {
    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = vec![self.title.clone(), String::new()];
        for table in &self.tables {
            lines.push(table.title.to_uppercase());
            lines.extend((!table.note.is_empty()).then(|| table.note.clone()));
            lines.extend([table.text(), String::new()]);
        }
        lines.extend(self.findings.iter().cloned());
        lines.extend(self.faults.iter().map(|fault| format!("WRONG     {fault}")));
        lines.join("\n")
    }
}

impl Table {
    /// Headings, each word on a line of its own, and rows without the figures that no row has; of a single row, a line for
    /// each figure.
    pub(super) fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        if let [row] = self.rows.as_slice() {
            if !row.name.is_empty() {
                table.set_header(["", &row.name]);
            }
            for figure in row.figures.iter().filter(|it| !it.text.is_empty()) {
                table.add_row([Cell::new(&figure.name), cell(figure)]);
            }
            return table.trim_fmt();
        }
        let rows = || self.rows.iter();
        let has_names = rows().any(|row| !row.name.is_empty());
        let columns = rows().next().map_or(0, |row| row.figures.len());
        let is_shown = |at: &usize| rows().any(|row| !row.figures[*at].text.is_empty());
        let shown: Vec<_> = (0..columns).filter(is_shown).collect();
        for row in rows() {
            let figures = || shown.iter().map(|at| &row.figures[*at]);
            if table.header().is_none() {
                let headings = figures().map(|figure| figure.name.replace(' ', "\n"));
                table.set_header(has_names.then(String::new).into_iter().chain(headings));
            }
            let name = has_names.then(|| Cell::new(&row.name));
            table.add_row(name.into_iter().chain(figures().map(cell)));
        }
        table.trim_fmt()
    }
}

fn cell(figure: &Figure) -> Cell {
    Cell::new(&figure.text).set_alignment(match figure.value {
        Some(_) => CellAlignment::Right,
        None => CellAlignment::Left,
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Figure, Row,
            unit::{COUNT, MILLIS},
        },
        *,
    };

    #[test]
    fn tables_stand_in_columns_and_empty_ones_are_left_out() {
        let mut report = Report::new("e2e", "Made up");
        report.findings = vec!["it kept up".to_owned()];
        report.faults = vec!["it broke".to_owned()];
        let row = |name: &str, micros: u64| {
            let figures = [
                COUNT.of("lost", None::<u64>),
                MILLIS.of("stored, p99", micros),
                Figure::words("sustained", "yes"),
            ];
            Row::new(name, figures)
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
WRONG     it broke";
        assert_eq!(report.summary(), expected);
    }
}
