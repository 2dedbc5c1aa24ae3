//! The report of a load: rates and percentiles over time, latency by percentile, and what follows from them.

use super::{
    generator::Generator,
    outcome::{Outcome, Step},
    second::Second,
};
use crate::report::{
    self, Axis, Better, Column, Figure, Percentiles, Plot, Report, Series, Table, grouped, rate,
};

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
            outcome: serde_json::to_value(self).unwrap_or_default(),
            ..Report::new("load", &title)
        }
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
        findings.push(format!("Latency, {from}: {}.", latency.line()));
    }
    let why = &outcome.generator.why;
    findings.push(format!("{}{}.", why[..1].to_uppercase(), &why[1..]));
    let late = Generator::late_seconds(&outcome.by_second);
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

fn faults(outcome: &Outcome) -> Vec<String> {
    let mut faults = Vec::new();
    if outcome.errors.total > 0 {
        faults.push(format!("Errors: {}.", outcome.errors.summary()));
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
    let figure = |name: &str, unit: &str, value, better, samples| Figure {
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
        better,
        samples,
    };
    let samples =
        |of: fn(&Second) -> Option<f64>| whole(&outcome.by_second).filter_map(of).collect();
    let mut figures = vec![figure(
        "accepted",
        "/s",
        outcome.accepted_per_second,
        Better::Higher,
        samples(|second| Some(second.accepted as f64)),
    )];
    if let Some(latency) = &outcome.latency_micros {
        figures.extend([
            figure(
                "latency p50",
                "µs",
                latency.p50 as f64,
                Better::Lower,
                samples(|second| Some(second.latency_micros?.p50 as f64)),
            ),
            figure(
                "latency p99",
                "µs",
                latency.p99 as f64,
                Better::Lower,
                samples(|second| Some(second.latency_micros?.p99 as f64)),
            ),
            figure(
                "latency p99.9",
                "µs",
                latency.p999 as f64,
                Better::Lower,
                samples(|second| Some(second.latency_micros?.p999 as f64)),
            ),
        ]);
    }
    figures.push(figure(
        "errors",
        "",
        outcome.errors.total as f64,
        Better::Lower,
        Vec::new(),
    ));
    if outcome.schedule.is_some() {
        figures.push(figure(
            "unsent",
            "",
            outcome.unsent as f64,
            Better::Lower,
            Vec::new(),
        ));
    }
    figures.push(figure(
        "generator CPU per request",
        "µs",
        outcome.cpu_micros_per_request,
        Better::Lower,
        Vec::new(),
    ));
    for step in &outcome.steps {
        let name = |what: &str| format!("{}/s: {what}", step.rate);
        let accepted = report::per_second(step.accepted, step.seconds);
        figures.push(figure(
            &name("accepted"),
            "/s",
            accepted,
            Better::Higher,
            Vec::new(),
        ));
        if let Some(latency) = &step.latency_micros {
            let p99 = latency.p99 as f64;
            figures.push(figure(
                &name("latency p99"),
                "µs",
                p99,
                Better::Lower,
                Vec::new(),
            ));
        }
    }
    figures
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
    let column = |(index, name): (usize, &&str)| Column {
        name: (*name).to_owned(),
        is_number: index > 0,
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
    plots.push(timed("rate", "Rate", "requests a second", false, rates));
    plots.push(timed(
        "latency",
        "Latency of the answers of each second",
        "milliseconds",
        true,
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
            "milliseconds",
            true,
            delays,
        ));
    }
    plots.push(timed(
        "outstanding",
        "Requests without an answer",
        "requests",
        false,
        vec![over_time("at the end of each second", seconds, |second| {
            Some(second.outstanding as f64)
        })],
    ));
    plots.push(timed(
        "generator",
        "Threads of the generator, mean",
        "percent of the time",
        false,
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

fn timed(name: &str, title: &str, label: &str, logarithmic: bool, series: Vec<Series>) -> Plot {
    Plot {
        name: name.to_owned(),
        title: title.to_owned(),
        x: Axis {
            label: "seconds since the start".to_owned(),
            logarithmic: false,
        },
        y: Axis {
            label: label.to_owned(),
            logarithmic,
        },
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
        x: Axis {
            label: "one in so many requests took this or longer (100: p99; 1 000: p99.9)"
                .to_owned(),
            logarithmic: true,
        },
        y: Axis {
            label: "milliseconds".to_owned(),
            logarithmic: true,
        },
        series: vec![Series {
            name: "latency".to_owned(),
            points: points.collect(),
        }],
    }
}
