//! Report of a load: rates, latency, and conclusions.

use super::{generator::Bottleneck, outcome::LoadOutcome, recorder::RequestCounts, second::Second};
use crate::report::{
    Measurement, Plot, Report, Row, Series, grouped, micros_per, per_second, rate,
    unit::{COUNT, CPU, MILLIS, RATE},
};

const PERCENTILES: [&str; 5] = ["p50", "p90", "p99", "p99.9", "max"];

const HOSTILE: &str = "Each request must be refused, so `accepted` counts refusals. Each reason is an outcome of \
    producer_edge_requests_total, or of producer_privacy_total.";

/// Minimum length of a second that counts as complete.
const WHOLE_SECOND: f64 = 0.999;

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
        report.plots = plots(self);
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
fn facts(outcome: &LoadOutcome) -> Vec<Measurement> {
    let counts = &outcome.counts;
    let unsent = outcome.plan.rate.map(|_| counts.unsent);
    let cpu_each = micros_per(outcome.cpu.as_secs_f64(), counts.sent);
    vec![
        COUNT.of("requests sent", counts.sent),
        COUNT.of("requests accepted", counts.accepted),
        RATE.of("accepted", per_second(counts.accepted, outcome.seconds)),
        COUNT.of("errors", counts.errors()),
        COUNT.of("unanswered", counts.unanswered),
        COUNT.of("unsent", unsent),
        COUNT.of("reconnects", counts.reconnects),
        Measurement::text("bottleneck", outcome.generator.limited_by.name()),
        CPU.of("generator CPU per request", cpu_each),
    ]
}

/// Percentiles of the whole run.
fn times(outcome: &LoadOutcome) -> Vec<Row> {
    let all = [
        ("latency", outcome.latency_micros),
        ("send delay", outcome.send_delay_micros),
        ("generator delay", outcome.generator.delay_micros),
    ];
    let measured = all.into_iter().filter(|(_, times)| times.is_some());
    let row = |(name, times)| Row::new(name, MILLIS.percentiles("", times, &PERCENTILES));
    measured.map(row).collect()
}

/// Rate in a second; `None` if it is not complete.
fn whole_rate(second: &Second, count: u64) -> Option<f64> {
    (second.length >= WHOLE_SECOND).then_some(count as f64 / second.length)
}

fn plots(outcome: &LoadOutcome) -> Vec<Plot> {
    type Value = fn(&Second) -> Option<f64>;
    let lines = |values: &[(&str, Value)]| -> Vec<Series> {
        let lines = values.iter().map(|(name, value)| {
            let at = |it: &Second| it.second as f64 + it.length;
            let point = |it| (at(it), value(it).unwrap_or(f64::NAN));
            Series::new(name, outcome.by_second.iter().map(point))
        });
        let has_values = |it: &Series| it.points.iter().any(|(_, y)| y.is_finite());
        lines.filter(has_values).collect()
    };
    let rates: [(_, Value); 4] = [
        ("intended", |it| whole_rate(it, it.intended?)),
        ("sent", |it| whole_rate(it, it.counts.sent)),
        ("accepted", |it| whole_rate(it, it.counts.accepted)),
        ("errors", |it| whole_rate(it, it.counts.errors())),
    ];
    let rates = match outcome.counts.errors() {
        0 => &rates[..3],
        _ => &rates[..],
    };
    let latency: [(_, Value); 4] = [
        ("latency p50", |it| {
            Some(it.latency_micros?.p50 as f64 / 1e3)
        }),
        ("latency p99", |it| {
            Some(it.latency_micros?.p99 as f64 / 1e3)
        }),
        ("latency p99.9", |it| {
            Some(it.latency_micros?.p999 as f64 / 1e3)
        }),
        ("latency max", |it| {
            Some(it.latency_micros?.max as f64 / 1e3)
        }),
    ];
    let mut plots = vec![
        Plot::over_time("Rate", "requests per second", lines(rates)),
        Plot::over_time("Latency by second", "milliseconds", lines(&latency)).logarithmic(),
    ];
    plots.retain(|plot| !plot.series.is_empty());
    plots
}
