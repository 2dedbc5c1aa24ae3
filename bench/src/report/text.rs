//! The report in a terminal: its tables, what follows from them, and what is wrong.

use comfy_table::{Cell, CellAlignment, presets::NOTHING};

use super::{
    Report, Table,
    figure::{self, Grid},
};

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
    /// Headings, each word on a line of its own, and rows.
    fn text(&self) -> String {
        let Grid { headings, lines } = self.grid();
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        if headings.iter().any(|heading| !heading.is_empty()) {
            table.set_header(headings.iter().map(|heading| heading.replace(' ', "\n")));
        }
        for line in lines {
            table.add_row(line.iter().map(cell));
        }
        table.trim_fmt()
    }
}

fn cell(cell: &figure::Cell) -> Cell {
    Cell::new(&cell.text).set_alignment(if cell.is_number {
        CellAlignment::Right
    } else {
        CellAlignment::Left
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
