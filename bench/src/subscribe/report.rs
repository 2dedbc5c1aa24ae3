//! The report of `bench subscribe`.

use super::SubscribeOutcome;
use crate::report::{
    Measurement, Plot, Report, Row, Series, grouped, micros_per, per_second,
    unit::{COUNT, CPU, MILLIS, RATE},
};

impl SubscribeOutcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let title = format!("{} streams from {}", self.args.streams, self.args.producer);
        let mut report = Report::new("subscribe", &title);
        report.seconds = self.total.seconds();
        report.findings = findings(self);
        report.failures = failures(self);
        report.add("Streams", "", [Row::new("", facts(self))]);
        let seconds = self.total.by_second.iter().enumerate();
        let points = seconds.map(|(second, count)| (second as f64 + 0.5, *count as f64));
        let series = vec![Series::new("received", points)];
        let all = "cookies a second, all streams";
        report.plots = vec![Plot::over_time("Cookies received", all, series)];
        report
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        self.report().summary()
    }
}

fn failures(outcome: &SubscribeOutcome) -> Vec<String> {
    let violation = outcome.total.first_violation.as_ref().map(|first| {
        let count = grouped(outcome.total.violations);
        format!("The producer broke its promise {count} times; first: {first}.")
    });
    let missed = outcome.args.requests.filter(|_| outcome.has_too_few());
    let missed = missed.map(|count| {
        let (least, count) = (grouped(outcome.received_per_stream[0]), grouped(count));
        format!("A stream got {least} cookies instead of {count}.")
    });
    violation.into_iter().chain(missed).collect()
}

fn findings(outcome: &SubscribeOutcome) -> Vec<String> {
    let total = &outcome.total;
    let mut findings = vec![lost_finding(outcome)];
    if total.new_epochs > 0 {
        findings.push(format!(
            "The producer had a new epoch {} times; what its old epoch still held is unknown.",
            grouped(total.new_epochs)
        ));
    }
    if let Some(error) = &total.first_broken {
        let broken = grouped(total.broken);
        findings.push(format!(
            "Streams were ended by an error {broken} times; first: {error}."
        ));
    }
    findings
}

/// What is known of cookies that did not arrive.
fn lost_finding(outcome: &SubscribeOutcome) -> String {
    let total = &outcome.total;
    let is_whole = total.violations + total.new_epochs + total.broken == 0;
    match total.lost {
        _ if !outcome.knows_lost() => {
            "Whether cookies were lost is unknown: this call has no sequences.".to_owned()
        }
        0 if outcome.received_per_stream[0] == 0 => {
            "Whether cookies were lost is unknown where none was received.".to_owned()
        }
        0 if is_whole => "None was lost: every sequence arrived.".to_owned(),
        0 => "None was declared lost; that every sequence arrived is not certain.".to_owned(),
        lost => {
            let (lost, gaps) = (grouped(lost), grouped(total.gaps));
            format!("{lost} were declared lost, in {gaps} gaps.")
        }
    }
}

fn facts(outcome: &SubscribeOutcome) -> Vec<Measurement> {
    let total = &outcome.total;
    let lost = outcome.knows_lost().then_some(total.lost);
    let rate = per_second(total.received, total.seconds());
    let cpu_each = micros_per(outcome.cpu.as_secs_f64(), total.received);
    let mut facts = vec![
        COUNT.of("cookies received", total.received),
        COUNT.of("received by a stream, min", outcome.received_per_stream[0]),
        COUNT.of("received by a stream, max", outcome.received_per_stream[1]),
        RATE.of("received a second", rate)
            .higher()
            .with_samples(whole_seconds(&total.by_second)),
        COUNT.of("lost", lost).lower(),
        COUNT.of("gaps", total.gaps),
        COUNT.of("violations", total.violations).lower(),
        COUNT.of("bytes", total.bytes),
        COUNT.of("ends by an error", total.broken),
        COUNT.of("streams opened again", total.reconnects),
        COUNT.of("epochs of the producer met later", total.new_epochs),
        CPU.of("reader CPU per cookie", cpu_each).lower(),
    ];
    let delivery = total.delivery_micros.percentiles();
    let shown = ["p50", "p90", "p99", "p99.9", "max"];
    let compared = ["p50", "p99", "p99.9"];
    facts.extend(MILLIS.percentiles("delivery ", delivery, &shown, &compared));
    facts
}

/// Seconds in which the streams were open all the time: between the first and the last in which something came.
pub(super) fn whole_seconds(by_second: &[u64]) -> Vec<f64> {
    let first = by_second.iter().position(|count| *count > 0).unwrap_or(0) + 1;
    let last = by_second.iter().rposition(|count| *count > 0).unwrap_or(0);
    let whole = by_second.get(first..last).unwrap_or_default();
    whole.iter().map(|count| *count as f64).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{
        super::{Call, StreamCounts, SubscribeArgs},
        *,
    };

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
        let whole = || SubscribeOutcome {
            args: args(&[]).unwrap(),
            total: StreamCounts::default(),
            received_per_stream: [1, 9],
            cpu: std::time::Duration::ZERO,
        };
        assert_eq!(lost_finding(&whole()), WHOLE);
        let against: [fn(&mut SubscribeOutcome); 6] = [
            |outcome| outcome.received_per_stream[0] = 0,
            |outcome| outcome.total.new_epochs = 1,
            |outcome| outcome.total.broken = 1,
            |outcome| outcome.total.violations = 1,
            |outcome| outcome.total.lost = 1,
            |outcome| outcome.args.call = Call::GetCookies,
        ];
        for change in against {
            let mut outcome = whole();
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
