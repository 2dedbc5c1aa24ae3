//! A soak as a report: what was done, and plots of everything over time.

use bench::{
    observe::{Observation, plots},
    report::{Figure, Report, Row, counted, rate, unit::SECONDS},
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
    let note = format!("Drawn from the seed {}.", outcome.seed);
    let events = outcome.events.iter().map(|event| {
        let when = SECONDS.of("after", event.seconds);
        Row::new("", [when, Figure::words("what", event.what.clone())])
    });
    report.add("What was done", &note, events.collect::<Vec<_>>());
    report.plots = plots(observations, began);
    report.with_outcome(outcome)
}
