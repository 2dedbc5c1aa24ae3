//! The report of a load: rates and percentiles over time, latency by percentile, and what follows from them.

use super::{
    generator::Generator,
    outcome::{Outcome, Step},
    second::Second,
};
use crate::report::{
    self, Axis, Better, Column, Figure, Percentiles, Plot, Report, Series, Table, grouped, rate,
};

/// Where half of the latencies are below this, a good part of them can be the millisecond of the generator's timer.
const TIMER_SHOWS_BELOW_MICROS: u64 = 2_000;

/// A part of a second shorter than this says nothing about a rate.
const WHOLE_SECOND: f64 = 0.999;

impl Outcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let how = match &self.schedule {
            Some(schedule) => format!("{schedule}, open loop"),
            None => format!(
                "as fast as answers come, {} at a time on each connection",
                self.pipeline
            ),
        };
        let title = format!("{} connections: {how}", self.connections);
        Report {
            findings: findings(self),
            faults: faults(self),
            seconds: self.seconds,
            figures: figures(self),
            tables: tables(self),
            plots: plots(self),
            ..Report::new("load", &title)
        }
        .with_outcome(self)
    }
}

fn findings(outcome: &Outcome) -> Vec<String> {
    let mut findings = vec![format!(
        "{} requests were accepted within {:.1} s: {}.",
        grouped(outcome.accepted),
        outcome.seconds,
        rate(outcome.accepted_per_second)
    )];
    if let Some(latency) = &outcome.latency_micros {
        let from = match outcome.schedule {
            Some(_) => "from the time when a request should have left",
            None => "from sending",
        };
        let note = outcome.latency_note();
        findings.push(format!("Latency, {from}: {}{note}.", latency.line()));
        if outcome.schedule.is_some() && latency.p50 < TIMER_SHOWS_BELOW_MICROS {
            findings.push(
                "Up to 1 ms of each latency is the generator's timer: see how late requests left."
                    .to_owned(),
            );
        }
    }
    let why = &outcome.generator.why;
    findings.push(format!("{why}."));
    let late = late_seconds(&outcome.by_second);
    if late > 0 {
        findings.push(format!(
            "In {late} of {} seconds the generator was late by itself; their latencies tell of it too.",
            outcome.by_second.len()
        ));
    }
    if outcome.refused_as_expected > 0 {
        findings.push(format!(
            "{} malformed requests were refused, as they should be.",
            grouped(outcome.refused_as_expected)
        ));
    }
    if outcome.interrupted {
        findings.push("The load was stopped before its end.".to_owned());
    }
    findings
}

/// Seconds in which the generator was late by itself, of those that tell.
fn late_seconds(seconds: &[Second]) -> usize {
    let delays = seconds
        .iter()
        .filter_map(|second| second.generator_delay_micros.as_ref());
    delays.filter(|delay| Generator::is_late(delay)).count()
}

fn faults(outcome: &Outcome) -> Vec<String> {
    let mut faults = Vec::new();
    if outcome.errors.total > 0 {
        faults.push(format!("Errors: {}.", outcome.errors.summary()));
    }
    if outcome.given_up > 0 {
        faults.push(format!("{}.", outcome.given_up_line()));
    }
    if outcome.unsent > 0 && !outcome.interrupted {
        faults.push(format!("{}.", outcome.unsent_line()));
    }
    faults
}

fn whole(seconds: &[Second]) -> impl Iterator<Item = &Second> {
    seconds
        .iter()
        .filter(|second| second.length >= WHOLE_SECOND)
}

fn figures(outcome: &Outcome) -> Vec<Figure> {
    let seconds = || whole(&outcome.by_second);
    let accepted = outcome.accepted_per_second;
    let mut figures = vec![
        Figure::new("accepted", "/s", accepted, Better::Higher)
            .with_samples(seconds().map(|second| second.accepted as f64)),
    ];
    if let Some(latency) = &outcome.latency_micros {
        type Pick = fn(&Percentiles) -> u64;
        let percentiles: [(_, Pick); 3] = [
            ("latency p50", |latency| latency.p50),
            ("latency p99", |latency| latency.p99),
            ("latency p99.9", |latency| latency.p999),
        ];
        figures.extend(percentiles.map(|(name, pick)| {
            let samples = seconds().filter_map(|second| second.latency_micros.as_ref());
            Figure::new(name, "µs", pick(latency) as f64, Better::Lower)
                .with_samples(samples.map(|latency| pick(latency) as f64))
        }));
    }
    let errors = outcome.errors.total as f64;
    figures.push(Figure::new("errors", "", errors, Better::Lower));
    if outcome.schedule.is_some() {
        let unsent = outcome.unsent as f64;
        figures.push(Figure::new("unsent", "", unsent, Better::Lower));
    }
    let cpu = outcome.cpu_micros_per_request;
    figures.push(Figure::new(
        "generator CPU per request",
        "µs",
        cpu,
        Better::Lower,
    ));
    for (index, step) in outcome.steps.iter().enumerate() {
        let name = |what: &str| format!("{}: {what}", step_name(&outcome.steps, index));
        let accepted = report::per_second(step.accepted, step.seconds);
        figures.push(Figure::new(
            name("accepted"),
            "/s",
            accepted,
            Better::Higher,
        ));
        if let Some(latency) = &step.latency_micros {
            let p99 = latency.p99 as f64;
            figures.push(Figure::new(name("latency p99"), "µs", p99, Better::Lower));
        }
    }
    figures
}

/// Its rate, and its number when there are several of that rate.
fn step_name(steps: &[Step], index: usize) -> String {
    let rate = steps[index].rate;
    if steps.iter().filter(|step| step.rate == rate).count() == 1 {
        format!("{rate}/s")
    } else {
        format!("{rate}/s in step {}", index + 1)
    }
}

fn tables(outcome: &Outcome) -> Vec<Table> {
    let mut rows = Vec::new();
    for (name, percentiles) in [
        ("latency", &outcome.latency_micros),
        ("send delay", &outcome.send_delay_micros),
        ("of it the generator's", &outcome.generator.delay_micros),
    ] {
        if let Some(percentiles) = percentiles {
            let mut row = vec![name.to_owned()];
            row.extend(cells(percentiles));
            rows.push(row);
        }
    }
    let mut tables = vec![Table {
        title: "Times".to_owned(),
        note: None,
        columns: columns(&["", "p50", "p90", "p99", "p99.9", "max"]),
        rows,
    }];
    if !outcome.steps.is_empty() {
        tables.push(Table {
            title: "Steps".to_owned(),
            note: Some("By the time when a request should have left.".to_owned()),
            columns: columns(&[
                "Rate", "Due", "Sent", "Accepted", "Errors", "p50", "p90", "p99", "p99.9", "max",
            ]),
            rows: outcome.steps.iter().map(step_row).collect(),
        });
    }
    tables
}

fn step_row(step: &Step) -> Vec<String> {
    let counts = [step.intended, step.sent, step.accepted, step.errors];
    let mut row = vec![rate(step.rate as f64)];
    row.extend(counts.map(grouped));
    match &step.latency_micros {
        Some(latency) => row.extend(cells(latency)),
        None => row.extend([const { String::new() }; 5]),
    }
    row
}

fn cells(times: &Percentiles) -> [String; 5] {
    [times.p50, times.p90, times.p99, times.p999, times.max].map(report::duration)
}

/// The first names the row, all others hold numbers.
fn columns(names: &[&str]) -> Vec<Column> {
    let column = |(index, name): (usize, &&str)| match index {
        0 => Column::words(name),
        _ => Column::number(name),
    };
    names.iter().enumerate().map(column).collect()
}

fn plots(outcome: &Outcome) -> Vec<Plot> {
    let seconds = &outcome.by_second;
    let mut rates = vec![
        over_time("sent", seconds, |second| per_second(second, second.sent)),
        over_time("accepted", seconds, |second| {
            per_second(second, second.accepted)
        }),
    ];
    let mut plots = Vec::new();
    if outcome.schedule.is_some() {
        rates.insert(
            0,
            over_time("intended", seconds, |second| {
                per_second(second, second.intended?)
            }),
        );
    }
    if outcome.errors.total > 0 {
        rates.push(over_time("errors", seconds, |second| {
            per_second(second, second.errors)
        }));
    }
    plots.push(timed(
        "rate",
        "Rate",
        Axis::linear("requests a second"),
        rates,
    ));
    plots.push(timed(
        "latency",
        "Latency of the answers of each second",
        Axis::logarithmic("milliseconds"),
        percentiles_over_time(seconds, |second| second.latency_micros),
    ));
    plots.push(by_percentile(outcome));
    if outcome.schedule.is_some() {
        let mut delays = percentiles_over_time(seconds, |second| second.send_delay_micros);
        delays.push(over_time("p99, the generator's own", seconds, |second| {
            Some(second.generator_delay_micros?.p99 as f64 / 1e3)
        }));
        plots.push(timed(
            "send-delay",
            "How late requests left",
            Axis::logarithmic("milliseconds"),
            delays,
        ));
    }
    plots.push(timed(
        "outstanding",
        "Requests without an answer",
        Axis::linear("requests"),
        vec![over_time("at the end of each second", seconds, |second| {
            Some(second.outstanding as f64)
        })],
    ));
    plots.push(timed(
        "generator",
        "Threads of the generator, mean",
        Axis::linear("percent of the time"),
        vec![
            over_time("running", seconds, |second| {
                Some(second.generator_running? * 100.0)
            }),
            over_time("waiting for a processor", seconds, |second| {
                Some(second.generator_waiting? * 100.0)
            }),
        ],
    ));
    plots
}

fn per_second(second: &Second, count: u64) -> Option<f64> {
    (second.length >= WHOLE_SECOND).then_some(count as f64 / second.length)
}

fn over_time(name: &str, seconds: &[Second], value: impl Fn(&Second) -> Option<f64>) -> Series {
    let point = |second: &Second| {
        let at = second.second as f64 + second.length;
        (at, value(second).unwrap_or(f64::NAN))
    };
    Series {
        name: name.to_owned(),
        points: seconds.iter().map(point).collect(),
    }
}

fn percentiles_over_time(
    seconds: &[Second],
    of: impl Fn(&Second) -> Option<Percentiles>,
) -> Vec<Series> {
    let line = |name: &str, pick: fn(&Percentiles) -> u64| {
        over_time(name, seconds, |second| {
            of(second).map(|times| pick(&times) as f64 / 1e3)
        })
    };
    vec![
        line("p50", |times| times.p50),
        line("p99", |times| times.p99),
        line("p99.9", |times| times.p999),
        line("max", |times| times.max),
    ]
}

fn timed(name: &str, title: &str, y: Axis, series: Vec<Series>) -> Plot {
    Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        x: Axis::linear("seconds since the start"),
        y,
        series,
    }
}

/// Latency against one in so many requests, as HDR histograms are usually drawn: 1,000 is the 99.9th percentile.
fn by_percentile(outcome: &Outcome) -> Plot {
    /// Points for each halving of what is above: enough for a smooth line.
    const TICKS_PER_HALF: u32 = 5;
    let total = outcome.latency.len() as f64;
    let values = outcome.latency.iter_quantiles(TICKS_PER_HALF);
    let points = values.map(|value| {
        let above: f64 = 1.0 - value.quantile_iterated_to();
        let one_in = above.recip().clamp(1.0, total.max(1.0));
        (one_in, value.value_iterated_to() as f64 / 1e3)
    });
    Plot {
        name: "latency-by-percentile".to_owned(),
        title: "Latency by percentile".to_owned(),
        x: Axis::logarithmic(
            "one in so many requests took this or longer (100: p99; 1 000: p99.9)",
        ),
        y: Axis::logarithmic("milliseconds"),
        series: vec![Series {
            name: "latency".to_owned(),
            points: points.collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_one_rate_have_names_of_their_own() {
        let step = |rate| Step {
            rate,
            seconds: 1.0,
            intended: rate,
            sent: rate,
            accepted: rate,
            refused_as_expected: 0,
            errors: 0,
            latency_micros: None,
        };
        let steps = [10, 20, 10].map(step);
        let names: Vec<_> = (0..3).map(|index| step_name(&steps, index)).collect();
        assert_eq!(names, ["10/s in step 1", "20/s", "10/s in step 3"]);
    }
}
