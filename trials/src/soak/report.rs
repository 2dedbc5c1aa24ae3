//! A soak as a report: what was done, and plots of everything over time.

use bench::{
    e2e::counted,
    observe::{Observation, plots},
    report::{Column, Report, Table, rate},
};
use tokio::time::Instant;

use super::Outcome;

pub(super) fn report(outcome: &Outcome, observations: &[Observation], began: Instant) -> Report {
    let title = format!(
        "{} → {} → {}, {} for {:.0} s",
        counted(outcome.producers, "producer"),
        counted(outcome.consumers, "consumer"),
        outcome.store,
        rate(outcome.rate as f64),
        outcome.seconds
    );
    let mut report = Report::new("soak", &title);
    report.findings = outcome.verification.lines();
    report.findings.extend(outcome.findings.iter().cloned());
    report.faults.clone_from(&outcome.faults);
    report.seconds = outcome.seconds;
    report.tables = vec![timeline(outcome)];
    report.plots = plots(observations, began);
    report.with_outcome(outcome)
}

fn timeline(outcome: &Outcome) -> Table {
    let rows = outcome
        .events
        .iter()
        .map(|event| vec![format!("{:.1}", event.seconds), event.what.clone()]);
    Table {
        title: "What was done".to_owned(),
        note: Some(format!("Drawn from the seed {}.", outcome.seed)),
        columns: vec![Column::number("seconds"), Column::words("what")],
        rows: rows.collect(),
    }
}
