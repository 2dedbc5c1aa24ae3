//! The report of `trials peers`.

mod findings;
mod usage;

use bench::report::{Axis, Better, Column, Figure, Plot, Report, Series, Table, grouped, rate};

use self::findings::{findings, further_subscriber};
use super::{
    outcome::{Outcome, Participant, Step, Stopped, mebibytes},
    scene::{QUIET, SETTLE_PATIENCE},
};

impl Outcome {
    /// The report of this run.
    #[must_use]
    pub fn report(&self) -> Report {
        let title = "Cookies to many subscribers: ours and what else one would use";
        let mut report = Report::new("peers", title);
        report.findings = findings(self);
        report.faults.clone_from(&self.faults);
        report.seconds = self.seconds;
        report.figures = self.steps.iter().flat_map(figures).collect();
        report.tables = vec![steps_table(self)];
        report.tables.extend(further_table(self));
        if !self.stopped.is_empty() {
            report.tables.push(stopped_table(&self.stopped));
        }
        report.tables.push(terms_table(self));
        report.plots = vec![
            plot(
                self,
                "deliveries",
                "Deliveries",
                "deliveries a second",
                |step| step.deliveries_per_second,
            ),
            plot(
                self,
                "broker-cpu",
                "CPU of the server",
                "µs for each delivery",
                |step| step.broker_cpu_micros_per_delivery,
            ),
        ];
        let versions = self.peers.iter().filter(|peer| peer.skipped.is_none());
        report
            .environment
            .programs
            .extend(versions.map(|peer| (peer.peer.name().to_owned(), peer.version.clone())));
        report.with_outcome(self)
    }
}

fn figures(step: &Step) -> Vec<Figure> {
    let at = format!(
        "{} with {} subscribers, {}",
        step.peer.name(),
        step.subscribers,
        step.packing()
    );
    let figure = |what: &str, unit: &str, value, better| {
        Figure::new(format!("{at}: {what}"), unit, value, better)
    };
    let memory = step.broker_peak_bytes as f64 / (1 << 20) as f64;
    let micros = step.broker_cpu_micros_per_delivery;
    let by_second = step.deliveries_per_second_by_second.iter().copied();
    let deliveries = step.deliveries_per_second;
    let published = step.published_per_second;
    vec![
        figure("deliveries", "/s", deliveries, Better::Higher).with_samples(by_second),
        figure("published", "/s", published, Better::Higher),
        figure("lost", "", step.lost as f64, Better::Lower),
        figure("server CPU per delivery", "µs", micros, Better::Lower),
        figure("server memory", "MiB", memory, Better::Lower),
    ]
}

fn steps_table(outcome: &Outcome) -> Table {
    let columns = vec![
        Column::number("subscribers"),
        Column::words("system"),
        Column::number("cookies a message"),
        Column::number("arriving, average"),
        Column::number("published"),
        Column::number("deliveries"),
        Column::number("lost"),
        Column::number("server CPU, µs a delivery"),
        Column::number("publisher CPU, µs a cookie"),
        Column::number("reader CPU, µs a delivery"),
        Column::number("server memory, peak"),
        Column::number("disconnects"),
    ];
    let micros = |micros: f64| format!("{micros:.3}");
    let mut steps: Vec<_> = outcome.steps.iter().collect();
    steps.sort_by_key(|step| (step.subscribers, step.batch, step.peer));
    let measured = steps.into_iter().map(|step| {
        vec![
            step.subscribers.to_string(),
            step.peer.name().to_owned(),
            step.peer.packing_short(step.batch),
            format!("{:.1}", step.cookies_per_message),
            rate(step.published_per_second),
            rate(step.deliveries_per_second),
            step.lost_share(),
            micros(step.broker_cpu_micros_per_delivery),
            micros(step.publisher_cpu_micros_per_cookie),
            micros(step.reader_cpu_micros_per_delivery),
            mebibytes(step.broker_peak_bytes),
            step.disconnects.to_string(),
        ]
    });
    let width = columns.len();
    let skipped = outcome
        .peers
        .iter()
        .filter_map(|Participant { peer, skipped, .. }| {
            let why = skipped.as_ref()?;
            let mut row = vec![String::new(); width];
            row[1] = format!("{} skipped: {why}", peer.name());
            Some(row)
        });
    let rows = measured.chain(skipped).collect();
    let load = outcome.rate.map_or_else(
        || "as fast as each takes them".to_owned(),
        |limit| format!("at {}", rate(limit as f64)),
    );
    Table {
        title: "Side by side".to_owned(),
        note: Some(format!(
            "Each step has a new server, one publishing process and one process of subscribers, each subscriber with a \
             connection of its own; {:.0} s, {load}. Every cookie has the same bytes everywhere. A peer's publisher makes \
             and encodes the cookies itself; ours is an HTTP load, and our server's CPU includes its HTTP edge, which the \
             peers do not have. With 1 a message, ours is read through GetCookies, otherwise through Subscribe, in \
             chunks that the producer makes by itself. Lost are cookies published less those that arrived at each \
             subscriber, until none had come for {} s, or {} s after publishing ended. What comes twice is told by \
             sequences and counts once; only GetCookies has none, where a cookie that came twice could hide one that \
             was lost. More arrivals than cookies published are a fault.",
            outcome.step_seconds,
            QUIET.as_secs(),
            SETTLE_PATIENCE.as_secs()
        )),
        columns,
        rows,
    }
}

/// What subscribers cost beyond the first ones; `None` when there is only one count.
fn further_table(outcome: &Outcome) -> Option<Table> {
    let mut rows = Vec::new();
    for batch in &outcome.batches {
        for Participant { peer, .. } in &outcome.peers {
            let Some((least, most, micros)) = further_subscriber(&outcome.steps, *peer, *batch)
            else {
                continue;
            };
            rows.push(vec![
                peer.packing_short(*batch),
                peer.name().to_owned(),
                format!("{least} to {most}"),
                format!("{micros:.3}"),
            ]);
        }
    }
    (!rows.is_empty()).then(|| Table {
        title: "A further subscriber".to_owned(),
        note: Some(
            "By how much the server's CPU time for each cookie published rises from the least to the most subscribers, \
             for each subscriber more. What a cookie costs on its way in, our HTTP edge above all, is not in it."
                .to_owned(),
        ),
        columns: vec![
            Column::number("cookies a message"),
            Column::words("system"),
            Column::words("subscribers"),
            Column::number("server CPU, µs a cookie"),
        ],
        rows,
    })
}

fn stopped_table(all: &[Stopped]) -> Table {
    let rows = all.iter().map(|stopped| {
        vec![
            stopped.peer.name().to_owned(),
            stopped.peer.packing_short(stopped.batch),
            grouped(stopped.published),
            mebibytes(stopped.memory_before_bytes),
            mebibytes(stopped.memory_peak_bytes),
            grouped(stopped.others_lost),
            grouped(stopped.lost),
            grouped(stopped.told_lost),
            stopped.disconnects.to_string(),
            stopped.verdict(),
        ]
    });
    let first = all.first();
    Table {
        title: "One subscriber stopped".to_owned(),
        note: first.map(|stopped| {
            format!(
                "Three subscribers at {}; the process of one is stopped (SIGSTOP) for {:.0} s and then goes on. Its fate \
                 is what its counts say.",
                rate(stopped.rate as f64),
                stopped.stopped_seconds
            )
        }),
        columns: vec![
            Column::words("system"),
            Column::number("cookies a message"),
            Column::number("published"),
            Column::number("server memory before"),
            Column::number("at most after"),
            Column::number("lost by the others"),
            Column::number("lost by it"),
            Column::number("of which told"),
            Column::number("its disconnects"),
            Column::words("the stopped subscriber"),
        ],
        rows: rows.collect(),
    }
}

fn terms_table(outcome: &Outcome) -> Table {
    let rows = outcome
        .peers
        .iter()
        .flat_map(|Participant { peer, version, .. }| {
            let batches = peer.batches(&outcome.batches).into_iter();
            batches.map(move |batch| {
                vec![
                    peer.name().to_owned(),
                    version.clone(),
                    peer.batched(batch),
                    peer.acknowledged().to_owned(),
                    peer.kept(outcome.keep),
                ]
            })
        });
    Table {
        title: "How each was used".to_owned(),
        note: Some("No durability was asked of any.".to_owned()),
        columns: vec![
            Column::words("system"),
            Column::words("version"),
            Column::words("batched"),
            Column::words("acknowledged"),
            Column::words("kept for a subscriber that is behind"),
        ],
        rows: rows.collect(),
    }
}

/// One line for each system and way of batching, by subscribers.
fn plot(
    outcome: &Outcome,
    name: &str,
    title: &str,
    label: &str,
    value: impl Fn(&Step) -> f64,
) -> Plot {
    let mut series = Vec::new();
    for batch in &outcome.batches {
        for Participant { peer, .. } in &outcome.peers {
            let of_it = outcome
                .steps
                .iter()
                .filter(|step| step.peer == *peer && step.batch == *batch);
            let mut points: Vec<_> = of_it
                .map(|step| (step.subscribers as f64, value(step)))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            if !points.is_empty() {
                let name = format!("{}, {}", peer.name(), peer.packing(*batch));
                series.push(Series { name, points });
            }
        }
    }
    Plot {
        name: name.to_owned(),
        title: format!("{title} by subscribers"),
        x: Axis::logarithmic("subscribers"),
        y: Axis::logarithmic(label),
        series,
    }
}
