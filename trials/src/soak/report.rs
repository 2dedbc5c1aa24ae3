//! A soak as a report: what was done, and plots with marks where.

use bench::{
    e2e::counted,
    observe::{Observation, plots},
    report::{Better, Column, Figure, Plot, Report, Series, Table, rate},
};
use tokio::time::Instant;

use super::Outcome;

/// Plots that show when something was done.
const MARKED: [&str; 3] = ["rate", "backlog", "latency"];

pub(super) fn report(outcome: &Outcome, observations: &[Observation], began: Instant) -> Report {
    let title = format!(
        "{} → {} → {}, {} for {:.0} s",
        counted(outcome.producers, "producer"),
        counted(outcome.consumers, "consumer"),
        outcome.store,
        rate(outcome.rate as f64),
        outcome.seconds
    );
    let mut report = Report::new("soak", &title);
    report.findings = outcome.verification.lines();
    report.findings.extend(outcome.findings.iter().cloned());
    report.faults.clone_from(&outcome.faults);
    report.seconds = outcome.seconds;
    report.figures = figures(outcome);
    report.tables = vec![timeline(outcome)];
    report.plots = plots(observations, began);
    for plot in &mut report.plots {
        if MARKED.contains(&plot.name.as_str()) {
            mark(plot, outcome);
        }
    }
    report.with_outcome(outcome)
}

fn figures(outcome: &Outcome) -> Vec<Figure> {
    let figure = |name: &str, unit: &str, value: f64, better| Figure {
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
        better,
        samples: Vec::new(),
    };
    let mut figures = vec![
        figure(
            "accepted",
            "/s",
            outcome.accepted_per_second,
            Better::Higher,
        ),
        figure("unanswered", "", outcome.unanswered as f64, Better::Lower),
        figure(
            "largest backlog",
            "",
            outcome.backlog_max as f64,
            Better::Lower,
        ),
        figure(
            "stored after the end",
            "s",
            outcome.settled.seconds,
            Better::Lower,
        ),
    ];
    if let Some(edge) = outcome.edge_micros {
        figures.push(figure(
            "edge latency, p99",
            "ms",
            edge.p99 as f64 / 1e3,
            Better::Lower,
        ));
    }
    figures
}

fn timeline(outcome: &Outcome) -> Table {
    let rows = outcome
        .events
        .iter()
        .map(|event| vec![format!("{:.1}", event.seconds), event.what.clone()]);
    Table {
        title: "What was done".to_owned(),
        note: Some(format!("Drawn from the seed {}.", outcome.seed)),
        columns: vec![
            Column {
                name: "seconds".to_owned(),
                is_number: true,
            },
            Column {
                name: "what".to_owned(),
                is_number: false,
            },
        ],
        rows: rows.collect(),
    }
}

/// Adds a line from the lowest to the highest value wherever something was done.
fn mark(plot: &mut Plot, outcome: &Outcome) {
    let values = plot
        .series
        .iter()
        .flat_map(|series| series.points.iter().map(|(_, y)| *y));
    let values = || {
        values
            .clone()
            .filter(|y| y.is_finite() && (!plot.y.logarithmic || *y > 0.0))
    };
    let (low, high) = (
        values().fold(f64::MAX, f64::min),
        values().fold(f64::MIN, f64::max),
    );
    if low > high || outcome.events.is_empty() {
        return;
    }
    let points = outcome.events.iter().flat_map(|event| {
        let x = event.seconds;
        [(x, low), (x, high), (x, f64::NAN)]
    });
    plot.series.push(Series {
        name: "faults".to_owned(),
        points: points.collect(),
    });
}
