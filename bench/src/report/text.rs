//! The report in a terminal: its tables, what follows from them, and what is wrong.

use super::{Column, Report, Table};

const GAP: &str = "  ";

impl Report {
    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut lines = vec![self.title.clone(), String::new()];
        for table in self.tables.iter().filter(|table| !table.rows.is_empty()) {
            lines.push(table.title.to_uppercase());
            lines.extend(table.note.clone());
            lines.extend(table.lines());
            lines.push(String::new());
        }
        lines.extend(self.findings.iter().cloned());
        lines.extend(self.faults.iter().map(|fault| format!("WRONG     {fault}")));
        lines.join("\n")
    }
}

impl Table {
    /// Headings and rows, in columns as narrow as their cells allow; columns without any cell are left out.
    fn lines(&self) -> Vec<String> {
        let columns: Vec<TextColumn> = self
            .columns
            .iter()
            .enumerate()
            .filter_map(|(index, column)| TextColumn::new(column, index, &self.rows))
            .collect();
        let line = |cell: &dyn Fn(&TextColumn) -> String| {
            let cells: Vec<_> = columns
                .iter()
                .map(|column| column.padded(&cell(column)))
                .collect();
            cells.join(GAP).trim_end().to_owned()
        };
        let height = columns.iter().map(|column| column.heading.len()).max();
        let height = height.unwrap_or(0);
        // Headings end right above the cells.
        let headings = (0..height).map(|at| {
            line(&|column| {
                let above = height - column.heading.len();
                let word = at.checked_sub(above).and_then(|at| column.heading.get(at));
                word.cloned().unwrap_or_default()
            })
        });
        let rows = self
            .rows
            .iter()
            .map(|row| line(&|column| row[column.index].clone()));
        headings.chain(rows).collect()
    }
}

/// A column that is shown.
struct TextColumn {
    index: usize,
    width: usize,
    is_number: bool,
    /// Its lines.
    heading: Vec<String>,
}

impl TextColumn {
    fn new(column: &Column, index: usize, rows: &[Vec<String>]) -> Option<Self> {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let of_cells = cells
            .map(|cell| letters(cell))
            .max()
            .filter(|width| *width > 0)?;
        let words = || column.name.split_whitespace();
        let width = words().map(letters).max().unwrap_or(0).max(of_cells);
        let mut heading: Vec<String> = Vec::new();
        for word in words() {
            match heading.last_mut() {
                Some(line) if letters(line) + 1 + letters(word) <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => heading.push(word.to_owned()),
            }
        }
        Some(Self {
            index,
            width,
            is_number: column.is_number,
            heading,
        })
    }

    fn padded(&self, cell: &str) -> String {
        let width = self.width;
        if self.is_number {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_stand_in_columns_and_empty_ones_are_left_out() {
        let mut report = Report::new("e2e", "Made up");
        report.findings = vec!["it kept up".to_owned()];
        report.faults = vec!["it broke".to_owned()];
        report.tables = vec![Table {
            title: "Steps".to_owned(),
            note: None,
            columns: vec![
                Column::words("process"),
                Column::number("mongod CPU"),
                Column::number("accepted to stored, p99"),
            ],
            rows: [("one", "7 µs"), ("another", "12.5 ms")]
                .map(|(name, time)| vec![name.to_owned(), String::new(), time.to_owned()])
                .into(),
        }];
        let expected = "\
Made up

STEPS
         accepted
               to
          stored,
process       p99
one          7 µs
another   12.5 ms

it kept up
WRONG     it broke";
        assert_eq!(report.summary(), expected);
    }
}
