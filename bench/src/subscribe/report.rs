//! Report of `bench subscribe`.

use super::streams::SubscribeOutcome;
use crate::report::{
    Measurement, Plot, Report, Row, Series, grouped, micros_per, per_second,
    unit::{COUNT, CPU, MILLIS, RATE},
};

impl SubscribeOutcome {
    /// The report of this run.
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
        let all = "cookies per second, all streams";
        report.plots = vec![Plot::over_time("Cookies received", all, series)];
        report
    }
}

fn failures(outcome: &SubscribeOutcome) -> Vec<String> {
    let violation = outcome.total.first_violation.as_ref().map(|first| {
        let count = grouped(outcome.total.violations);
        format!("The producer violated the protocol {count} times; first: {first}.")
    });
    let too_few = outcome.args.requests.filter(|_| outcome.has_too_few());
    let too_few = too_few.map(|count| {
        let (min, count) = (grouped(outcome.received_per_stream[0]), grouped(count));
        format!("A stream received {min} cookies instead of {count}.")
    });
    violation.into_iter().chain(too_few).collect()
}

fn findings(outcome: &SubscribeOutcome) -> Vec<String> {
    let total = &outcome.total;
    let mut findings = vec![lost_finding(outcome)];
    if total.new_epochs > 0 {
        findings.push(format!(
            "The producer started a new epoch {} times; losses at the end of an epoch are unknown.",
            grouped(total.new_epochs)
        ));
    }
    if let Some(error) = &total.first_broken {
        let broken = grouped(total.broken);
        findings.push(format!("Streams failed {broken} times; first: {error}."));
    }
    findings
}

/// Finding about lost cookies.
fn lost_finding(outcome: &SubscribeOutcome) -> String {
    let total = &outcome.total;
    let is_complete = total.violations + total.new_epochs + total.broken == 0;
    match total.lost {
        _ if !outcome.detects_loss() => {
            "Losses are unknown, because this call has no sequence numbers.".to_owned()
        }
        0 if outcome.received_per_stream[0] == 0 => {
            "Losses are unknown, because a stream received no cookie.".to_owned()
        }
        0 if is_complete => "No cookie was lost: all sequence numbers arrived.".to_owned(),
        0 => "No cookie was declared lost, but sequence numbers may be missing.".to_owned(),
        lost => {
            let (lost, gaps) = (grouped(lost), grouped(total.gaps));
            format!("{lost} cookies were declared lost, in {gaps} gaps.")
        }
    }
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
        COUNT.of("streams reopened", total.reconnects),
        COUNT.of("new epochs", total.new_epochs),
        CPU.of("reader CPU per cookie", cpu_each),
    ];
    let delivery = total.delivery_micros.percentiles();
    let shown = ["p50", "p90", "p99", "p99.9", "max"];
    facts.extend(MILLIS.percentiles("delivery ", delivery, &shown));
    facts
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{
        super::{
            args::{Call, SubscribeArgs},
            stream::StreamCounts,
        },
        *,
    };

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: SubscribeArgs,
    }

    fn args(line: &[&str]) -> Result<SubscribeArgs, clap::Error> {
        Cli::try_parse_from([&["subscribe"], line].concat()).map(|line| line.args)
    }

    #[test]
    fn no_loss_is_only_claimed_with_certainty() {
        const NO_LOSS: &str = "No cookie was lost: all sequence numbers arrived.";
        let complete = || SubscribeOutcome {
            args: args(&[]).unwrap(),
            total: StreamCounts::default(),
            received_per_stream: [1, 9],
            cpu: std::time::Duration::ZERO,
        };
        assert_eq!(lost_finding(&complete()), NO_LOSS);
        let doubts: [fn(&mut SubscribeOutcome); 6] = [
            |outcome| outcome.received_per_stream[0] = 0,
            |outcome| outcome.total.new_epochs = 1,
            |outcome| outcome.total.broken = 1,
            |outcome| outcome.total.violations = 1,
            |outcome| outcome.total.lost = 1,
            |outcome| outcome.args.call = Call::GetCookies,
        ];
        for change in doubts {
            let mut outcome = complete();
            change(&mut outcome);
            assert_ne!(lost_finding(&outcome), NO_LOSS, "{outcome:?}");
        }
    }

    #[test]
    fn zero_streams_are_rejected() {
        assert!(args(&["--streams=0"]).is_err());
        assert_eq!(args(&["--streams=3"]).unwrap().streams.get(), 3);
    }
}
