//! A soak as a report: what was done, and plots of everything over time.

use bench::{
    observe::{Observation, plots},
    report::{Measurement, Report, Row, plural, rate, unit::SECONDS},
};
use tokio::time::Instant;

use super::SoakOutcome;

pub(super) fn report(
    outcome: &SoakOutcome,
    observations: &[Observation],
    began: Instant,
) -> Report {
    let title = format!(
        "{} → {} → {}, {} for {:.0} s",
        plural(outcome.producers, "producer"),
        plural(outcome.consumers, "consumer"),
        outcome.store,
        rate(outcome.rate as f64),
        outcome.seconds
    );
    let mut report = Report::new("soak", &title);
    report.findings = outcome.verification.lines();
    report.findings.extend(outcome.findings.iter().cloned());
    report.failures.clone_from(&outcome.failures);
    report.seconds = outcome.seconds;
    let note = format!("Drawn from the seed {}.", outcome.seed);
    let events = outcome.events.iter().map(|event| {
        let when = SECONDS.of("after", event.seconds);
        Row::new("", [when, Measurement::text("what", event.what.clone())])
    });
    report.add("What was done", &note, events.collect::<Vec<_>>());
    report.plots = plots(observations, began);
    report.with_outcome(outcome)
}
