//! Report of a load: rates, latency, and conclusions.

use testkit::numbers::{grouped, per_second, rate};

use super::{outcome::LoadOutcome, recorder::RequestCounts, response::PSEUDO_STATUSES};
use crate::report::{
    Measurement, Report, Row, micros_per,
    unit::{COUNT, CPU, DECIMAL, MILLIS, RATE},
};

const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

const HOSTILE: &str = "Each request must be refused, so `accepted` counts refusals. Each reason is an outcome of \
    producer_edge_requests_total, or of producer_privacy_total.";

impl LoadOutcome {
    /// The report of this run.
    pub fn report(&self) -> Report {
        let mode = match self.plan.rate {
            Some(target) => format!("{}, open loop", rate(target.get() as f64)),
            None => format!(
                "closed loop, {} outstanding per connection",
                self.plan.pipeline_max()
            ),
        };
        let title = format!("{} connections: {mode}", self.plan.connections);
        let mut report = Report::new("load", &title);
        report.findings = findings(self);
        report.failures = failures(self);
        report.seconds = self.seconds;
        report.add("Requests", "", [Row::new("", facts(self))]);
        report.add("Times", "", times(self));
        let hostile = self.hostile.iter();
        let hostile = hostile.map(|(reason, sent)| Row::new(*reason, [COUNT.of("sent", *sent)]));
        report.add("Hostile requests", HOSTILE, hostile.collect::<Vec<_>>());
        report
    }
}

fn findings(outcome: &LoadOutcome) -> Vec<String> {
    let mut findings = Vec::new();
    if let Some(latency) = &outcome.latency_micros {
        let from = match outcome.plan.rate {
            Some(_) => "from the intended send time",
            None => "from the send time",
        };
        let note = match outcome.counts.errors() {
            0 => "",
            _ => {
                " (unanswered requests count until they were abandoned; rejected ones are excluded)"
            }
        };
        findings.push(format!("Latency, {from}: {}{note}.", latency.line()));
    }
    if let Some(limit) = outcome.generator_limit() {
        findings.push(format!(
            "{limit}. Increase --threads, or use another machine."
        ));
    }
    if outcome.interrupted {
        findings.push("The load was interrupted.".to_owned());
    }
    findings.push(format!("Seed: {}.", outcome.plan.traffic.seed()));
    findings
}

fn failures(outcome: &LoadOutcome) -> Vec<String> {
    let counts = &outcome.counts;
    let mut failures = Vec::new();
    if counts.errors() > 0 {
        failures.push(format!("Errors: {}.", errors_by_kind(counts)));
    }
    if counts.unsent > 0 && !outcome.interrupted {
        failures.push(format!(
            "{} due requests were not sent and have no latency.",
            grouped(counts.unsent),
        ));
    }
    failures
}

fn errors_by_kind(counts: &RequestCounts) -> String {
    let statuses = counts.rejected.iter();
    let name = |status: u16| match PSEUDO_STATUSES.get(usize::from(status)) {
        Some(name) => (*name).to_owned(),
        None => format!("status {status}"),
    };
    let statuses = statuses.map(|(status, count)| (name(*status), *count));
    let others = [
        ("invalid response", counts.malformed),
        ("unanswered", counts.unanswered),
    ];
    let others = others.map(|(kind, count)| (kind.to_owned(), count));
    let kinds = statuses.chain(others).filter(|(_, count)| *count > 0);
    let kinds: Vec<_> = kinds
        .map(|(kind, count)| format!("{kind}: {}", grouped(count)))
        .collect();
    format!("{} ({})", grouped(counts.errors()), kinds.join(", "))
}

/// Measurements of the whole run.
fn facts(outcome: &LoadOutcome) -> Vec<Measurement> {
    let counts = &outcome.counts;
    let unsent = outcome.plan.rate.map(|_| counts.unsent);
    let cpu_seconds = outcome.cpu.as_secs_f64();
    vec![
        COUNT.of("requests sent", counts.sent),
        COUNT.of("requests accepted", counts.accepted),
        RATE.of("accepted", per_second(counts.accepted, outcome.seconds)),
        COUNT.of("errors", counts.errors()),
        COUNT.of("unanswered", counts.unanswered),
        COUNT.of("unsent", unsent),
        COUNT.of("reconnects", counts.reconnects),
        DECIMAL.of("generator cores", cpu_seconds / outcome.seconds),
        CPU.of(
            "generator CPU per request",
            micros_per(cpu_seconds, counts.sent),
        ),
    ]
}

/// Percentiles of the whole run.
fn times(outcome: &LoadOutcome) -> Vec<Row> {
    let all = [
        ("latency", outcome.latency_micros),
        ("generator delay", outcome.generator_delay_micros),
    ];
    let measured = all.into_iter().filter(|(_, times)| times.is_some());
    let row = |(name, times)| Row::new(name, MILLIS.percentiles("", times, &PERCENTILES));
    measured.map(row).collect()
}
