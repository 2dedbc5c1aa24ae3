//! What became of a trace, as a table and as JSON.

use anyhow::Result;

use crate::replay::Outcome;

const HEADS: [&str; 9] = [
    "through",
    "released",
    "delayed",
    "refused",
    "worst window",
    "delay p50",
    "delay p99",
    "memory",
    "took",
];

fn row(outcome: &Outcome) -> [String; 9] {
    let time = |seconds: f64| match seconds {
        0.0 => "0".to_owned(),
        seconds if seconds < 1.0 => format!("{:.3}ms", seconds * 1e3),
        seconds => format!("{seconds:.2}s"),
    };
    let kib = outcome.memory_bytes.div_ceil(1024);
    [
        outcome.name.clone(),
        outcome.released.to_string(),
        outcome.delayed.to_string(),
        outcome.refused.to_string(),
        outcome.worst_window.to_string(),
        time(outcome.delay_p50),
        time(outcome.delay_p99),
        format!("{kib} KiB"),
        format!("{:.2}s", outcome.took),
    ]
}

/// A table, a row for each outcome.
#[must_use]
pub fn table(outcomes: &[Outcome]) -> String {
    let rows: Vec<[String; 9]> = outcomes.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0).max(HEADS[column].len())
    };
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut lines = vec![line(&HEADS.map(str::to_owned), &widths)];
    lines.extend(rows.iter().map(|row| line(row, &widths)));
    lines.join("\n")
}

fn line(cells: &[String; 9], widths: &[usize; 9]) -> String {
    let mut line = format!("{:<1$}", cells[0], widths[0]);
    for (cell, width) in cells.iter().zip(widths).skip(1) {
        line.push_str(&format!("  {cell:>width$}"));
    }
    line
}

/// All outcomes as one JSON list.
///
/// # Errors
/// When a number cannot be written.
pub fn json(outcomes: &[Outcome]) -> Result<String> {
    Ok(serde_json::to_string_pretty(outcomes)?)
}
