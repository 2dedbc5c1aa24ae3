//! Report of `bench e2e`: tables of steps and processes, and conclusions.

use testkit::{
    cluster::ClusterArgs,
    numbers::rate,
    observe::{ProcessCounts, Role},
    scrape::names,
};

use super::step::{ProcessUse, Step};
use crate::report::{
    Measurement, Report, Row, plural,
    unit::{BYTES, COUNT, CPU, DECIMAL, MEBIBYTES, MILLIS, RATE, SECONDS},
};

/// The report of all steps.
pub(super) fn report(args: &ClusterArgs, steps: &[Step]) -> Report {
    let title = format!(
        "{} → {} → {}, {}",
        plural(args.producers.get(), "producer"),
        plural(args.consumers.get(), "consumer"),
        args.store.name(),
        plural(steps.len(), "step")
    );
    let mut report = Report::new("e2e", &title);
    let of_steps = |row: fn(&Step) -> Row| steps.iter().map(row).collect::<Vec<_>>();
    report.add("Steps", STEPS, of_steps(step));
    report.add("Latency", LATENCY, of_steps(latency));
    let (mut used, mut counts) = (Vec::new(), Vec::new());
    for step in steps {
        let name = |item: &str| format!("{}/s {item}", step.rate);
        used.extend(
            step.processes()
                .map(|it| Row::new(name(&it.sample.name), process(&it))),
        );
        let nodes = step.nodes();
        counts.extend(nodes.map(|(node, counts)| Row::new(name(node), outcomes(&counts))));
    }
    report.add("Processes", PROCESSES, used);
    report.add("Cookie outcomes", NODES, counts);
    report.findings = findings(steps, args.consumers.get());
    report.failures = steps.iter().flat_map(Step::failures).collect();
    report
}

impl Step {
    fn row(&self, measures: impl IntoIterator<Item = Measurement>) -> Row {
        Row::new(format!("{}/s", self.rate), measures)
    }
}

const STEPS: &str = "Backlog: accepted cookies that the slowest node has not stored, at the end of the load and at the highest \
    level. Bytes per delivery: those passed to streams. Sustained: 99 % accepted, and a backlog of up to one second at the end.";

fn step(step: &Step) -> Row {
    let batches = step.histogram(names::BATCH_COOKIES).count();
    let [delivered, bytes, batched] = [names::DELIVERED, names::SENT_BYTES, names::BATCH_COOKIES]
        .map(|metric| step.increase(metric) as f64);
    step.row([
        COUNT.of("requests offered", step.offered),
        COUNT.of("requests accepted", step.accepted()),
        RATE.of("accepted", step.accepted_per_second()),
        RATE.of("stored", step.stored_per_second),
        COUNT.of("backlog at the end", step.backlog()),
        COUNT.of("peak backlog", step.backlog_max),
        SECONDS.of("time to store it", step.settled.seconds),
        COUNT.of("lost", step.increase(names::LOST)),
        COUNT.of("failed", step.increase(names::FAILED)),
        COUNT.of("mean batch", batched / batches.max(1.0)),
        BYTES.of("bytes per delivery", bytes / delivered.max(1.0)),
        Measurement::text("sustained", step.verdict()),
    ])
}

const LATENCY: &str = "Edge latency: from the intended send time to the response. Other values: from the histograms of all consumers, \
    interpolated within buckets.";

fn latency(step: &Step) -> Row {
    let histograms = [
        ("accepted to received", names::RECEIVED_SECONDS),
        ("accepted to stored", names::STORED_SECONDS),
        ("flush", names::FLUSH_SECONDS),
    ];
    let quantiles = histograms.into_iter().flat_map(|(name, metric)| {
        let buckets = step.histogram(metric);
        [("p50", 0.5), ("p99", 0.99)].map(|(shown, quantile)| {
            let micros = buckets.quantile(quantile).map(|seconds| seconds * 1e6);
            MILLIS.of(&format!("{name}, {shown}"), micros)
        })
    });
    let edge = step.load_run.outcome.latency_micros;
    let shown = ["p50", "p99", "p99.9", "max"];
    step.row(MILLIS.percentiles("edge latency, ", edge, &shown))
        .with(quantiles)
}

const PROCESSES: &str = "Cores: used during the load. CPU: user and kernel time until all cookies were stored, per accepted cookie. \
    Peak: maximum memory since the process started.";

fn process(used: &ProcessUse<'_>) -> [Measurement; 4] {
    [
        DECIMAL.of("cores", used.cores),
        CPU.of("CPU per cookie", used.cpu_micros_per_cookie),
        MEBIBYTES.of("resident", used.sample.memory.resident_bytes),
        MEBIBYTES.of("peak", used.sample.memory.peak_bytes),
    ]
}

const NODES: &str = "Received = written + superseded (by a newer one in the batch) + suppressed (duplicates) + stale + failed.";

fn outcomes(counts: &ProcessCounts) -> [Measurement; 7] {
    let outcomes = [
        ("received", names::RECEIVED),
        ("written", names::WRITTEN),
        ("superseded", names::SUPERSEDED),
        ("suppressed", names::SUPPRESSED),
        ("stale", names::STALE),
        ("failed", names::FAILED),
        ("lost", names::LOST),
    ];
    outcomes.map(|(name, metric)| COUNT.of(name, counts.of(metric)))
}

/// Conclusions of a run with `consumers` nodes, most important first.
fn findings(steps: &[Step], consumers: usize) -> Vec<String> {
    let sustained = steps.iter().filter(|step| step.failure_reason().is_none());
    let best = sustained.max_by_key(|step| step.rate);
    let mut findings = vec![match best {
        Some(step) => format!(
            "{} sustained by {}; time from acceptance to storage: {}",
            rate(step.rate as f64),
            plural(consumers, "node"),
            step.stored_latency()
        ),
        None => "no rate was sustained".to_owned(),
    }];
    let failed = steps
        .iter()
        .filter_map(|step| Some((step, step.failure_reason()?)));
    findings.extend(failed.map(|(step, reason)| {
        let rate = rate(step.rate as f64);
        format!("{rate} not sustained: {reason}")
    }));
    let mut complete = steps.iter().filter(|step| step.ended_early.is_none());
    findings.extend(best.or(complete.next()).map(|step| cost(step, consumers)));
    findings
}

/// Cost of a cookie. Use it to estimate other rates.
fn cost(step: &Step, consumers: usize) -> String {
    let cpu = |role| step.sum(role, |used| used.cpu_micros_per_cookie);
    let each_node = |role| cpu(role) / consumers as f64;
    format!(
        "CPU per cookie at {}: {:.2} µs in the producer with {}, and {:.2} µs in the consumer and {:.2} µs in mongod on each node",
        rate(step.rate as f64),
        cpu(Role::Producer),
        plural(consumers, "node"),
        each_node(Role::Consumer),
        each_node(Role::Mongod),
    )
}
