//! Report of a load: rates, latency, and conclusions.

use super::{generator::Bottleneck, outcome::LoadOutcome, recorder::RequestCounts, second::Second};
use crate::report::{
    Measurement, Plot, Report, Row, grouped, micros_per, per_second, rate, samples, to_series,
    unit::{COUNT, CPU, MILLIS, RATE},
};

const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

/// Percentiles of the latency that take part in comparisons.
const COMPARED: [&str; 3] = ["p50", "p99", "p99.9"];

const HOSTILE: &str = "All must be refused, so `accepted` counts refusals. Each reason is an outcome of \
    producer_edge_requests_total, or of producer_privacy_total.";

/// Minimum length of a second that counts as complete.
const WHOLE_SECOND: f64 = 0.999;

impl LoadOutcome {
    /// The report of this run.
    #[must_use]
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
        let whole = self.by_second.iter().filter(|second| is_whole(second));
        let whole: Vec<_> = whole.map(second).collect();
        report.add("Requests", "", [Row::new("", facts(self, &whole))]);
        report.add("Times", "", times(self));
        let hostile = self.hostile.iter();
        let hostile = hostile.map(|(reason, sent)| Row::new(*reason, [COUNT.of("sent", *sent)]));
        report.add("Hostile requests", HOSTILE, hostile.collect::<Vec<_>>());
        let seconds: Vec<_> = self.by_second.iter().map(second).collect();
        report.plots = plots(self, &seconds);
        report
    }

    /// The summary for the terminal.
    #[must_use]
    pub fn summary(&self) -> String {
        self.report().summary()
    }

    /// Whether every response was correct and, unless the load was interrupted, all due requests were sent.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        failures(self).is_empty()
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
    findings.push(format!("{}.", outcome.generator.reason));
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
        let reason = match outcome.generator.limited_by {
            Bottleneck::Generator => "the generator was the bottleneck",
            Bottleneck::Cpu => "the CPU was the bottleneck",
            Bottleneck::None => "responses were too slow for this rate",
        };
        failures.push(format!(
            "{} due requests were not sent and have no latency: {reason}.",
            grouped(counts.unsent),
        ));
    }
    failures
}

fn errors_by_kind(counts: &RequestCounts) -> String {
    let statuses = counts.rejected.iter();
    let statuses = statuses.map(|(status, count)| (format!("status {status}"), *count));
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
fn facts(outcome: &LoadOutcome, whole: &[Row]) -> Vec<Measurement> {
    let counts = &outcome.counts;
    let unsent = outcome.plan.rate.map(|_| counts.unsent);
    let cpu_each = micros_per(outcome.cpu.as_secs_f64(), counts.sent);
    vec![
        COUNT.of("requests sent", counts.sent),
        COUNT.of("requests accepted", counts.accepted),
        RATE.of("accepted", per_second(counts.accepted, outcome.seconds))
            .higher()
            .with_samples(samples(whole, "accepted")),
        COUNT.of("errors", counts.errors()).lower(),
        COUNT.of("unanswered", counts.unanswered),
        COUNT.of("unsent", unsent).lower(),
        COUNT.of("reconnects", counts.reconnects),
        Measurement::text("bottleneck", outcome.generator.limited_by.name()),
        CPU.of("generator CPU per request", cpu_each).lower(),
    ]
}

/// Percentiles of the whole run.
fn times(outcome: &LoadOutcome) -> Vec<Row> {
    let all = [
        ("latency", outcome.latency_micros, &COMPARED[..]),
        ("send delay", outcome.send_delay_micros, &[]),
        ("generator delay", outcome.generator.delay_micros, &[]),
    ];
    let measured = all.into_iter().filter(|(_, times, _)| times.is_some());
    let row = |(name, times, compared)| {
        Row::new(name, MILLIS.percentiles("", times, &PERCENTILES, compared))
    };
    measured.map(row).collect()
}

/// One second, as points of the plots.
fn second(second: &Second) -> Row {
    let rate = |count: u64| is_whole(second).then_some(count as f64 / second.length);
    let shown = ["p50", "p99", "p99.9", "max"];
    let measures = [
        RATE.of("intended", second.intended.and_then(rate)),
        RATE.of("sent", rate(second.counts.sent)),
        RATE.of("accepted", rate(second.counts.accepted)),
        RATE.of("errors", rate(second.counts.errors())),
    ];
    Row::new("", measures)
        .with(MILLIS.percentiles("latency ", second.latency_micros, &shown, &[]))
        .at(second.second as f64 + second.length)
}

fn is_whole(second: &Second) -> bool {
    second.length >= WHOLE_SECOND
}

fn plots(outcome: &LoadOutcome, seconds: &[Row]) -> Vec<Plot> {
    let rates = ["intended", "sent", "accepted", "errors"];
    let rates = match outcome.counts.errors() {
        0 => &rates[..3],
        _ => &rates[..],
    };
    let latency = ["latency p50", "latency p99", "latency p99.9", "latency max"];
    let title = "Latency by second";
    let mut plots = vec![
        Plot::over_time("Rate", "requests per second", to_series(seconds, rates)),
        Plot::over_time(title, "milliseconds", to_series(seconds, &latency)).logarithmic(),
    ];
    plots.retain(|plot| !plot.series.is_empty());
    plots
}
