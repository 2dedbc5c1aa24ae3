//! The run as a report: tables of the steps and processes, plots of everything over time.

use super::{
    outcome::Outcome,
    running::Cut,
    sizing::Sizing,
    step::{NodeCounts, ProcessUse, Quantiles, Step, micros},
};
use crate::{
    observe::{Observation, plots},
    report::{
        Better, Column, Figure, Percentiles, Report, Table, counted, duration, grouped, rate,
    },
};

pub(super) fn report(outcome: &Outcome, observations: &[Observation]) -> Report {
    let title = format!(
        "{} → {} → {}, {}",
        counted(outcome.producers, "producer"),
        counted(outcome.consumers, "consumer"),
        outcome.store,
        counted(outcome.steps.len(), "step")
    );
    let mut report = Report::new("e2e", &title);
    report.findings.clone_from(&outcome.findings);
    report.findings.extend(outcome.verification.lines());
    report.faults.clone_from(&outcome.faults);
    report.seconds = outcome.seconds;
    report.figures = outcome.steps.iter().flat_map(figures).collect();
    report.tables = vec![steps(outcome), latencies(outcome), processes(outcome)];
    report
        .tables
        .extend(outcome.sizing.iter().map(Sizing::table));
    report.tables.push(nodes(outcome));
    if let Some(first) = observations.first() {
        report.plots = plots(observations, first.at);
    }
    report.with_outcome(outcome)
}

fn figures(step: &Step) -> Vec<Figure> {
    let prefix = format!("{}/s", step.rate);
    let figure = |name: &str, unit: &str, value: f64, better: Better| Figure {
        name: format!("{prefix}: {name}"),
        unit: unit.to_owned(),
        value,
        better,
        samples: Vec::new(),
    };
    let mut figures = vec![
        Figure {
            samples: step.accepted_each_second.clone(),
            ..figure("accepted", "/s", step.accepted_per_second, Better::Higher)
        },
        figure("stored", "/s", step.stored_per_second, Better::Higher),
        figure("backlog at the end", "", step.backlog as f64, Better::Lower),
        figure(
            "bytes a delivery",
            "B",
            step.bytes_per_delivery,
            Better::Lower,
        ),
        figure("batch", "", step.batch_cookies, Better::Neither),
    ];
    let roles = ["producer", "consumer", "mongod", "generator"];
    for role in roles {
        let micros = step.cpu_micros(role);
        if micros > 0.0 {
            let name = format!("{role} CPU per cookie");
            figures.push(figure(&name, "µs", micros, Better::Lower));
        }
    }
    let quantiles = [
        ("accepted to received, p50", step.received.p50),
        ("accepted to received, p99", step.received.p99),
        ("accepted to stored, p50", step.stored.p50),
        ("accepted to stored, p99", step.stored.p99),
        ("flush, p99", step.flush.p99),
    ];
    for (name, seconds) in quantiles {
        figures.extend(seconds.map(|seconds| figure(name, "ms", seconds * 1e3, Better::Lower)));
    }
    if let Some(edge) = step.edge_micros {
        figures.push(figure(
            "edge latency, p99",
            "ms",
            edge.p99 as f64 / 1e3,
            Better::Lower,
        ));
    }
    figures
}

fn text(name: &str) -> Column {
    Column {
        name: name.to_owned(),
        is_number: false,
    }
}

fn number(name: &str) -> Column {
    Column {
        name: name.to_owned(),
        is_number: true,
    }
}

fn steps(outcome: &Outcome) -> Table {
    let row = |step: &Step| {
        let (lost, failed) = step.lost_and_failed();
        vec![
            rate(step.rate as f64),
            grouped(step.offered),
            grouped(step.accepted),
            rate(step.accepted_per_second),
            rate(step.stored_per_second),
            grouped(step.backlog),
            grouped(step.backlog_max),
            format!("{:.1}", step.settled.seconds),
            grouped(lost),
            grouped(failed),
            match step.cut {
                Some(Cut::Interrupted) => "interrupted",
                Some(Cut::Ended) => "a process ended",
                None if step.is_sustained => "yes",
                None => "no",
            }
            .to_owned(),
        ]
    };
    Table {
        title: "Steps".to_owned(),
        note: Some(
            "Backlog: accepted and not yet stored on the slowest node, when the last request was answered, and at most. Sustained: at \
             least 99 % accepted, at most one second's worth waiting at the end, and in the second half stored as fast as accepted."
                .to_owned(),
        ),
        columns: vec![
            number("rate"),
            number("offered"),
            number("accepted"),
            number("accepted a second"),
            number("stored a second"),
            number("backlog"),
            number("largest backlog"),
            number("stored after, s"),
            number("lost"),
            number("failed"),
            text("sustained"),
        ],
        rows: outcome.steps.iter().map(row).collect(),
    }
}

fn latencies(outcome: &Outcome) -> Table {
    let row = |step: &Step| {
        let of = |seconds: Option<f64>| {
            seconds.map_or_else(|| "-".to_owned(), |seconds| duration(micros(seconds)))
        };
        let edge = |of: fn(&Percentiles) -> u64| {
            let edge = step.edge_micros.as_ref();
            edge.map_or_else(|| "-".to_owned(), |edge| duration(of(edge)))
        };
        let both = |quantiles: &Quantiles| [of(quantiles.p50), of(quantiles.p99)];
        let mut row = vec![
            rate(step.rate as f64),
            edge(|edge| edge.p50),
            edge(|edge| edge.p99),
            edge(|edge| edge.p999),
        ];
        row.extend(both(&step.received));
        row.extend(both(&step.stored));
        row.extend(both(&step.flush));
        row.push(of(step.flush_and_interval_p99));
        row.push(format!("{:.0}", step.batch_cookies));
        row
    };
    Table {
        title: "Latency".to_owned(),
        note: Some(
            "Edge: from the intended time of a request to its answer. The others are the consumers' own histograms, over all nodes, \
             interpolated within their buckets; flush + interval is what a cookie waits at worst that misses a batch."
                .to_owned(),
        ),
        columns: [
            "rate",
            "edge p50",
            "edge p99",
            "edge p99.9",
            "to received p50",
            "to received p99",
            "to stored p50",
            "to stored p99",
            "flush p50",
            "flush p99",
            "flush + interval p99",
            "cookies a batch",
        ]
        .map(number)
        .into(),
        rows: outcome.steps.iter().map(row).collect(),
    }
}

fn processes(outcome: &Outcome) -> Table {
    let mebibytes = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    let row = |step: &Step, used: &ProcessUse| {
        vec![
            rate(step.rate as f64),
            used.name.clone(),
            format!("{:.2}", used.cores),
            format!("{:.2}", used.cpu_micros_per_cookie),
            mebibytes(used.resident_bytes),
            mebibytes(used.peak_bytes),
        ]
    };
    let rows = outcome
        .steps
        .iter()
        .flat_map(|step| step.processes.iter().map(move |used| row(step, used)));
    Table {
        title: "Processes".to_owned(),
        note: Some(
            "Cores while requests came; CPU for each accepted cookie until all of them were stored, the kernel's included; the peak is \
             since the process began."
                .to_owned(),
        ),
        columns: vec![
            number("rate"),
            text("process"),
            number("cores"),
            number("CPU, µs a cookie"),
            number("resident, MiB"),
            number("peak, MiB"),
        ],
        rows: rows.collect(),
    }
}

fn nodes(outcome: &Outcome) -> Table {
    let row = |step: &Step, node: &NodeCounts| {
        let counts = [
            node.received,
            node.written,
            node.superseded,
            node.suppressed,
            node.stale,
            node.failed,
            node.lost,
        ];
        let mut row = vec![rate(step.rate as f64), node.name.clone()];
        row.extend(counts.map(grouped));
        row
    };
    let rows = outcome
        .steps
        .iter()
        .flat_map(|step| step.nodes.iter().map(move |node| row(step, node)));
    Table {
        title: "What became of the cookies".to_owned(),
        note: Some(
            "Received = written + superseded (by a newer one in the batch) + suppressed (repeats) + stale + failed."
                .to_owned(),
        ),
        columns: [text("rate"), text("node")]
            .into_iter()
            .chain(
                ["received", "written", "superseded", "suppressed", "stale", "failed", "lost"]
                    .map(number),
            )
            .collect(),
        rows: rows.collect(),
    }
}
