//! Report of a soak run: events, and plots over time.

use bench::{
    observe::{Observation, plots},
    report::{Measurement, Report, Row, plural, rate, unit::SECONDS},
};
use tokio::time::Instant;

use super::outcome::SoakOutcome;

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
    let note = format!("Seed {}.", outcome.seed);
    let events = outcome.events.iter().map(|event| {
        let when = SECONDS.of("time", event.seconds);
        Row::new(
            "",
            [when, Measurement::text("event", event.description.clone())],
        )
    });
    report.add("Faults", &note, events.collect::<Vec<_>>());
    report.plots = plots(observations, began);
    report
}
