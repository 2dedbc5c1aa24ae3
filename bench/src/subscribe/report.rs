//! The report of `bench subscribe`.

use super::{Extremes, Outcome, SubscribeArgs};
use crate::report::{
    Axis, Better, Column, Figure, Percentiles, Plot, Report, Series, Table, duration, grouped,
    per_second, rate,
};

impl SubscribeArgs {
    /// The report of a run with these arguments.
    #[must_use]
    pub fn report_of(&self, outcome: &Outcome) -> Report {
        let title = format!("{} streams from {}", outcome.streams, outcome.producer);
        let mut report = Report::new("subscribe", &title);
        report.seconds = outcome.seconds;
        report.findings = findings(outcome);
        report.faults = self.faults(outcome);
        report.figures = figures(outcome);
        report.tables = vec![table(outcome)];
        report.plots = vec![rate_plot(outcome)];
        report.with_outcome(outcome)
    }

    fn faults(&self, outcome: &Outcome) -> Vec<String> {
        let violation = outcome.first_violation.as_ref().map(|first| {
            let count = grouped(outcome.violations);
            format!("The producer broke its promise {count} times; first: {first}.")
        });
        let missed = self
            .requests
            .filter(|_| !self.is_met_by(outcome))
            .map(|count| {
                let (least, count) = (grouped(outcome.received_per_stream.min), grouped(count));
                format!("A stream got {least} cookies instead of {count}.")
            });
        violation.into_iter().chain(missed).collect()
    }
}

fn findings(outcome: &Outcome) -> Vec<String> {
    let mut findings = vec![format!(
        "{} cookies were received in {:.1} s, {} over all streams.",
        grouped(outcome.received),
        outcome.seconds,
        rate(outcome.received_per_second)
    )];
    findings.push(lost_finding(outcome));
    if outcome.new_epochs > 0 {
        findings.push(format!(
            "Another life of the producer was met {} times; what its old life still held is unknown.",
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
        outcome.cpu_micros_per_cookie
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

fn figures(outcome: &Outcome) -> Vec<Figure> {
    let cpu = outcome.cpu_micros_per_cookie;
    let mut figures = vec![
        Figure::new(
            "received a second",
            "/s",
            outcome.received_per_second,
            Better::Higher,
        )
        .with_samples(whole_seconds(&outcome.received_by_second)),
        Figure::new("reader CPU per cookie", "µs", cpu, Better::Lower),
    ];
    if let Some(lost) = outcome.lost {
        figures.push(Figure::new("lost", "", lost as f64, Better::Lower));
    }
    if let Some(Percentiles { p50, p99, p999, .. }) = outcome.delivery_micros {
        for (name, micros) in [("p50", p50), ("p99", p99), ("p99.9", p999)] {
            let name = format!("delivery {name}");
            figures.push(Figure::new(name, "ms", micros as f64 / 1e3, Better::Lower));
        }
    }
    figures
}

/// Seconds in which the streams were open all the time: between the first and the last in which something came.
fn whole_seconds(by_second: &[u64]) -> Vec<f64> {
    let first = by_second.iter().position(|count| *count > 0).unwrap_or(0) + 1;
    let last = by_second.iter().rposition(|count| *count > 0).unwrap_or(0);
    let whole = by_second.get(first..last).unwrap_or_default();
    whole.iter().map(|count| *count as f64).collect()
}

fn table(outcome: &Outcome) -> Table {
    let each = |extremes: Option<Extremes>| {
        extremes.map_or_else(String::new, |Extremes { min, max }| {
            format!("{} to {}", grouped(min), grouped(max))
        })
    };
    let rows = [
        (
            "cookies received",
            grouped(outcome.received),
            each(Some(outcome.received_per_stream)),
        ),
        (
            "cookies lost",
            outcome.lost.map_or_else(|| "unknown".to_owned(), grouped),
            each(outcome.lost_per_stream),
        ),
        ("gaps", grouped(outcome.gaps), String::new()),
        ("bytes", grouped(outcome.bytes), String::new()),
        (
            "MB a second",
            format!("{:.1}", per_second(outcome.bytes, outcome.seconds) / 1e6),
            String::new(),
        ),
        ("ends by an error", grouped(outcome.broken), String::new()),
        (
            "streams opened again",
            grouped(outcome.reconnects),
            String::new(),
        ),
        (
            "lives of the producer met later",
            grouped(outcome.new_epochs),
            String::new(),
        ),
        ("orderly ends", grouped(outcome.goodbyes), String::new()),
    ];
    Table {
        title: "Streams".to_owned(),
        note: outcome
            .delivery_micros
            .as_ref()
            .map(|delivery| format!("From the edge to here: {}", delivery.line())),
        columns: vec![
            Column::words(""),
            Column::number("all streams"),
            Column::number("each stream"),
        ],
        rows: rows
            .map(|(name, all, each)| vec![name.to_owned(), all, each])
            .into(),
    }
}

fn rate_plot(outcome: &Outcome) -> Plot {
    let seconds = outcome.received_by_second.iter().enumerate();
    let points = seconds.map(|(second, count)| (second as f64 + 0.5, *count as f64));
    Plot {
        name: "rate".to_owned(),
        title: "Cookies received".to_owned(),
        x: Axis::linear("seconds since the start"),
        y: Axis::linear("cookies a second, all streams"),
        series: vec![Series {
            name: "received".to_owned(),
            points: points.collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
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
