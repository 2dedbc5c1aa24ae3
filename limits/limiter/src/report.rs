//! Replay results as a table.

use std::fmt::Write as _;

use limits::rate::Time;

use crate::replay::Outcome;

/// Formats a table with a row per outcome.
pub fn table(outcomes: &[Outcome]) -> String {
    let names = outcomes.iter().map(|it| it.name.chars().count());
    let width = names.max().unwrap_or(0).max("limits".len());
    let mut text = format!(
        "{:width$} {:>10} {:>10} {:>10} {:>13} {:>10} {:>10}",
        "limits", "released", "delayed", "refused", "worst window", "delay p50", "delay p99"
    );
    for it in outcomes {
        let [p50, p99] = [it.delay_p50, it.delay_p99].map(|delay| Time::from(delay).to_string());
        let row = write!(
            text,
            "\n{:width$} {:>10} {:>10} {:>10} {:>13} {p50:>10} {p99:>10}",
            it.name, it.released, it.delayed, it.refused, it.worst_window
        );
        row.expect("formatting into a string does not fail");
    }
    text
}
