//! Report of `bench subscribe`.

use testkit::numbers::{grouped, per_second};

use super::streams::SubscribeOutcome;
use crate::report::{
    Measurement, Report, Row, micros_per,
    unit::{COUNT, CPU, MILLIS, RATE},
};

impl SubscribeOutcome {
    /// The report of this run.
    pub fn report(&self) -> Report {
        let title = format!("{} streams from {}", self.args.streams, self.args.producer);
        let mut report = Report::new("subscribe", &title);
        report.seconds = self.total.seconds();
        report
            .findings
            .extend(self.total.first_broken.as_ref().map(|error| {
                let broken = grouped(self.total.broken);
                format!("Streams failed {broken} times; first: {error}.")
            }));
        report.failures = failures(self);
        report.add("Streams", "", [Row::new("", facts(self))]);
        report
    }
}

fn failures(outcome: &SubscribeOutcome) -> Vec<String> {
    let violation = outcome.total.first_violation.as_ref().map(|first| {
        let count = grouped(outcome.total.violations);
        format!("The producer violated the protocol {count} times; first: {first}.")
    });
    let [min, _] = outcome.received_per_stream;
    let too_few = outcome.args.requests.filter(|count| min < *count);
    let too_few = too_few.map(|count| {
        let (min, count) = (grouped(min), grouped(count));
        format!("A stream received {min} cookies instead of {count}.")
    });
    violation.into_iter().chain(too_few).collect()
}

fn facts(outcome: &SubscribeOutcome) -> Vec<Measurement> {
    let total = &outcome.total;
    let lost = outcome.detects_loss().then_some(total.lost);
    let rate = per_second(total.received, total.seconds());
    let cpu_each = micros_per(outcome.cpu.as_secs_f64(), total.received);
    let mut facts = vec![
        COUNT.of("cookies received", total.received),
        COUNT.of("received by a stream, min", outcome.received_per_stream[0]),
        COUNT.of("received by a stream, max", outcome.received_per_stream[1]),
        RATE.of("received per second", rate),
        COUNT.of("lost", lost),
        COUNT.of("gaps", total.gaps),
        COUNT.of("violations", total.violations),
        COUNT.of("bytes", total.bytes),
        COUNT.of("stream failures", total.broken),
        CPU.of("reader CPU per cookie", cpu_each),
    ];
    let delivery = total.delivery_micros.percentiles();
    let shown = ["p50", "p90", "p99", "p99.9", "max"];
    facts.extend(MILLIS.percentiles("delivery ", delivery, &shown));
    facts
}
