//! The report of `bench subscribe`.

use super::{Extremes, Outcome};
use crate::report::{
    Figure, Plot, Report, Row, Series, duration, grouped, micros_each, per_second, rate,
    unit::{COUNT, CPU, MILLIS, RATE},
};

impl Outcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let title = format!("{} streams from {}", self.streams, self.producer);
        let mut report = Report::new("subscribe", &title);
        report.seconds = self.seconds;
        report.findings = findings(self);
        report.faults = faults(self);
        report.add("Streams", "", [Row::new("", facts(self))]);
        let seconds = self.received_by_second.iter().enumerate();
        let points = seconds.map(|(second, count)| (second as f64 + 0.5, *count as f64));
        report.plots = vec![Plot::over_time(
            "rate",
            "Cookies received",
            "cookies a second, all streams",
            vec![Series::new("received", points)],
        )];
        report
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        self.report().summary()
    }

    fn cpu_micros_per_cookie(&self) -> f64 {
        micros_each(self.cpu.total().as_secs_f64(), self.received)
    }
}

fn faults(outcome: &Outcome) -> Vec<String> {
    let violation = outcome.first_violation.as_ref().map(|first| {
        let count = grouped(outcome.violations);
        format!("The producer broke its promise {count} times; first: {first}.")
    });
    let missed = outcome.asked_of_each.filter(|_| outcome.has_too_few());
    let missed = missed.map(|count| {
        let (least, count) = (grouped(outcome.received_per_stream.min), grouped(count));
        format!("A stream got {least} cookies instead of {count}.")
    });
    violation.into_iter().chain(missed).collect()
}

fn findings(outcome: &Outcome) -> Vec<String> {
    let mut findings = vec![format!(
        "{} cookies were received in {:.1} s, {} over all streams.",
        grouped(outcome.received),
        outcome.seconds,
        rate(per_second(outcome.received, outcome.seconds))
    )];
    findings.push(lost_finding(outcome));
    if outcome.new_epochs > 0 {
        findings.push(format!(
            "The producer had a new epoch {} times; what its old epoch still held is unknown.",
            grouped(outcome.new_epochs)
        ));
    }
    if let Some(error) = &outcome.first_broken {
        let broken = grouped(outcome.broken);
        findings.push(format!(
            "Streams were ended by an error {broken} times; first: {error}."
        ));
    }
    if let Some(delivery) = &outcome.delivery_micros {
        findings.push(format!(
            "From the edge to here, half took up to {}, 99 % up to {}.",
            duration(delivery.p50),
            duration(delivery.p99)
        ));
    }
    findings.push(format!(
        "Reading cost {:.3} µs of CPU a cookie.",
        outcome.cpu_micros_per_cookie()
    ));
    findings
}

/// What is known of cookies that did not arrive.
fn lost_finding(outcome: &Outcome) -> String {
    let is_whole = outcome.violations + outcome.new_epochs + outcome.broken == 0;
    match outcome.lost {
        None => "Whether cookies were lost is unknown: this call has no sequences.".to_owned(),
        Some(0) if outcome.received_per_stream.min == 0 => {
            "Whether cookies were lost is unknown where none was received.".to_owned()
        }
        Some(0) if is_whole => "None was lost: every sequence arrived.".to_owned(),
        Some(0) => "None was declared lost; that every sequence arrived is not certain.".to_owned(),
        Some(lost) => {
            let (lost, gaps) = (grouped(lost), grouped(outcome.gaps));
            format!("{lost} were declared lost, in {gaps} gaps.")
        }
    }
}

fn facts(outcome: &Outcome) -> Vec<Figure> {
    let min = |of: Option<Extremes>| of.map(|it| it.min);
    let max = |of: Option<Extremes>| of.map(|it| it.max);
    let (received, lost) = (Some(outcome.received_per_stream), outcome.lost_per_stream);
    let mut facts = vec![
        COUNT.of("cookies received", outcome.received),
        COUNT.of("received by a stream, min", min(received)),
        COUNT.of("received by a stream, max", max(received)),
        RATE.of(
            "received a second",
            per_second(outcome.received, outcome.seconds),
        )
        .higher()
        .sampled(whole_seconds(&outcome.received_by_second)),
        COUNT.of("lost", outcome.lost).lower(),
        COUNT.of("lost by a stream, min", min(lost)),
        COUNT.of("lost by a stream, max", max(lost)),
        COUNT.of("gaps", outcome.gaps),
        COUNT.of("violations", outcome.violations).lower(),
        COUNT.of("bytes", outcome.bytes),
        COUNT.of("ends by an error", outcome.broken),
        COUNT.of("streams opened again", outcome.reconnects),
        COUNT.of("epochs of the producer met later", outcome.new_epochs),
        COUNT.of("orderly ends", outcome.goodbyes),
        CPU.of("reader CPU per cookie", outcome.cpu_micros_per_cookie())
            .lower(),
    ];
    let delivery = outcome.delivery_micros;
    let shown = ["p50", "p90", "p99", "p99.9", "max"];
    let compared = ["p50", "p99", "p99.9"];
    facts.extend(MILLIS.percentiles("delivery ", delivery, &shown, &compared));
    facts
}

/// Seconds in which the streams were open all the time: between the first and the last in which something came.
fn whole_seconds(by_second: &[u64]) -> Vec<f64> {
    let first = by_second.iter().position(|count| *count > 0).unwrap_or(0) + 1;
    let last = by_second.iter().rposition(|count| *count > 0).unwrap_or(0);
    let whole = by_second.get(first..last).unwrap_or_default();
    whole.iter().map(|count| *count as f64).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{super::SubscribeArgs, *};
    use crate::cpu::CpuTime;

    /// The arguments as on the command line.
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SubscribeArgs,
    }

    fn args(line: &[&str]) -> Result<SubscribeArgs, clap::Error> {
        Line::try_parse_from([&["subscribe"], line].concat()).map(|line| line.args)
    }

    #[test]
    fn all_has_arrived_only_where_nothing_speaks_against_it() {
        const WHOLE: &str = "None was lost: every sequence arrived.";
        let mut whole = super::super::summarize(&args(&[]).unwrap(), &[], CpuTime::default());
        assert_ne!(lost_finding(&whole), WHOLE, "nothing was received");
        whole.received_per_stream = Extremes { min: 1, max: 9 };
        assert_eq!(lost_finding(&whole), WHOLE);
        let against: [fn(&mut Outcome); 6] = [
            |outcome| outcome.received_per_stream.min = 0,
            |outcome| outcome.new_epochs = 1,
            |outcome| outcome.broken = 1,
            |outcome| outcome.violations = 1,
            |outcome| outcome.lost = Some(1),
            |outcome| outcome.lost = None,
        ];
        for change in against {
            let mut outcome = whole.clone();
            change(&mut outcome);
            assert_ne!(lost_finding(&outcome), WHOLE, "{outcome:?}");
        }
    }

    #[test]
    fn no_streams_are_refused() {
        assert!(args(&["--streams=0"]).is_err());
        assert_eq!(args(&["--streams=3"]).unwrap().streams.get(), 3);
    }

    #[test]
    fn only_whole_seconds_are_samples() {
        for (by_second, expected) in [
            (&[0, 0, 3, 9, 0, 8, 2, 0][..], &[9.0, 0.0, 8.0][..]),
            (&[0, 7], &[]),
            (&[7, 7], &[]),
            (&[0], &[]),
            (&[], &[]),
        ] {
            assert_eq!(whole_seconds(by_second), expected, "{by_second:?}");
        }
    }
}
