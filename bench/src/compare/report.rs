//! The report of a comparison: every figure in a table, and the plots of both runs on one.

use super::{Outcome, Verdict};
use crate::report::{Column, Plot, Report, Series, Table};

impl Outcome {
    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        report(self, Vec::new()).summary()
    }
}

/// Of [`Outcome`], with the [plots of both reports](overlaid).
pub(super) fn report(outcome: &Outcome, plots: Vec<Plot>) -> Report {
    let title = format!("Two runs of bench {} compared", outcome.scenario);
    let mut report = Report::new("compare", &title);
    report.findings = findings(outcome);
    report.faults = outcome
        .new_faults
        .iter()
        .map(|fault| format!("In B: {fault}"))
        .collect();
    report.faults.extend(
        outcome
            .changes
            .iter()
            .filter(|c| c.verdict == Verdict::Worse)
            .map(|change| {
                let [a, b] = [change.a, change.b].map(|value| change.written(value));
                format!(
                    "{} got worse: {a} → {b} ({})",
                    change.name,
                    change.percent()
                )
            }),
    );
    report.tables = vec![table(outcome)];
    report.plots = plots;
    report.with_outcome(outcome)
}

fn findings(outcome: &Outcome) -> Vec<String> {
    let mut findings = vec![
        format!("A is {}", outcome.a),
        format!("B is {}", outcome.b),
        outcome.tally(),
    ];
    findings.extend(
        outcome
            .warnings
            .iter()
            .map(|warning| format!("Compare with care: {warning}")),
    );
    findings
}

fn table(outcome: &Outcome) -> Table {
    let rows = outcome.changes.iter().map(|change| {
        let [a, b] = [change.a, change.b].map(|value| change.written(value));
        vec![
            change.name.clone(),
            a,
            b,
            change.percent(),
            change.verdict.to_string(),
        ]
    });
    let noise = outcome.noise_percent;
    let note = format!(
        "A change counts when it exceeds {noise} % ({} % for CPU time) and the samples of both runs lie apart.",
        noise / 2.0
    );
    Table {
        title: "Figures".to_owned(),
        note: Some(note),
        columns: vec![
            Column::words("figure"),
            Column::number("A"),
            Column::number("B"),
            Column::number("change"),
            Column::words("verdict"),
        ],
        rows: rows.collect(),
    }
}

/// Plots that both have, each line of A followed by the same of B.
pub(super) fn overlaid(a: &[Plot], b: &[Plot]) -> Vec<Plot> {
    let pairs = a.iter().filter_map(|plot| {
        let other = b.iter().find(|other| other.name == plot.name)?;
        Some((plot, other))
    });
    pairs
        .map(|(of_a, of_b)| {
            let named = |of: &str, series: &Series| Series {
                name: format!("{of}: {}", series.name),
                points: series.points.clone(),
            };
            let only_b =
                |series: &&Series| of_a.series.iter().all(|other| other.name != series.name);
            let both = of_a.series.iter().flat_map(|series| {
                let same = of_b.series.iter().find(|other| other.name == series.name);
                [Some(named("A", series)), same.map(|same| named("B", same))]
            });
            let rest = of_b
                .series
                .iter()
                .filter(only_b)
                .map(|series| named("B", series));
            Plot {
                series: both.flatten().chain(rest).collect(),
                ..of_a.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Axis;

    #[test]
    fn same_plots_are_laid_over_each_other() {
        let plot = |name: &str, series: &[&str]| {
            let series = series.iter().map(|name| Series::new(name, [(1.0, 1.0)]));
            Plot::over_time(name, name, Axis::linear(""), series.collect())
        };
        let a = [plot("rate", &["in", "out"]), plot("memory", &["all"])];
        let b = [plot("cpu", &["all"]), plot("rate", &["out", "new"])];
        let plots = overlaid(&a, &b);
        assert_eq!(plots.len(), 1);
        let names: Vec<_> = plots[0]
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
        assert_eq!(names, ["A: in", "A: out", "B: out", "B: new"]);
    }
}
