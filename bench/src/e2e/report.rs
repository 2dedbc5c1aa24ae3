//! Report of `bench e2e`: tables of steps and processes, and plots over time.

use super::{
    step::{ProcessUse, Step},
    verification::Verification,
};
use crate::{
    cluster::ClusterArgs,
    observe::ProcessCounts,
    report::{
        Measurement, Report, Row, plural,
        unit::{BYTES, COUNT, CPU, DECIMAL, MEBIBYTES, MILLIS, RATE, SECONDS},
    },
    scrape::names,
    verify::StoreVerdict,
};

/// The report of all steps, without conclusions.
pub(super) fn report(args: &ClusterArgs, steps: &[Step], verification: &Verification) -> Report {
    let expiry = args.expiry();
    let title = format!(
        "{} → {} → {}{}, {}",
        plural(args.producers.get(), "producer"),
        plural(args.consumers.get(), "consumer"),
        args.store.name(),
        expiry.map_or_else(String::new, |mode| format!(" with --expiry {mode}")),
        plural(steps.len(), "step")
    );
    let mut report = Report::new("e2e", &title);
    let of_steps = |row: fn(&Step) -> Row| steps.iter().map(row).collect::<Vec<_>>();
    report.add("Steps", STEPS, of_steps(step));
    report.add("Latency", LATENCY, of_steps(latency));
    let (mut used, mut counts) = (Vec::new(), Vec::new());
    for step in steps {
        let name = |item: &str| format!("{}/s {item}", step.rate);
        let processes = step.processes.iter();
        used.extend(processes.map(|it| Row::new(name(&it.name), process(it))));
        let nodes = step.nodes.iter();
        counts.extend(nodes.map(|(node, counts)| Row::new(name(node), outcomes(counts))));
    }
    report.add("Processes", PROCESSES, used);
    report.add("Cookie outcomes", NODES, counts);
    let verdicts = verification.verdicts.iter();
    let verdicts = verdicts.map(|verdict| Row::new(&verdict.node, pairs(verdict)));
    report.add("Verification", PAIRS, verdicts.collect::<Vec<_>>());
    report
}

impl Step {
    fn row(&self, measures: impl IntoIterator<Item = Measurement>) -> Row {
        Row::new(format!("{}/s", self.rate), measures)
    }
}

const STEPS: &str = "Backlog: accepted cookies that the slowest node has not stored, at the end of the load and at the highest \
    level. Bytes per delivery: those passed to streams. Sustained: 99 % accepted, a backlog of up to one second at the end, and \
    equal rates of accepted and stored cookies in the second half.";

fn step(step: &Step) -> Row {
    let (lost, failed) = step.lost_and_failed();
    step.row([
        COUNT.of("requests offered", step.offered),
        COUNT.of("requests accepted", step.accepted()),
        RATE.of("accepted", step.accepted_per_second()),
        RATE.of("stored", step.stored_per_second),
        COUNT.of("backlog at the end", step.backlog),
        COUNT.of("peak backlog", step.backlog_max),
        SECONDS.of("time to store it", step.settled.seconds),
        COUNT.of("lost", lost),
        COUNT.of("failed", failed),
        COUNT.of("mean batch", step.batch_cookies),
        BYTES.of("bytes per delivery", step.bytes_per_delivery),
        Measurement::text("sustained", step.verdict("yes", "no")),
    ])
}

const LATENCY: &str = "Edge latency: from the intended send time to the response. Other values: from the histograms of all consumers, \
    interpolated within buckets.";

fn latency(step: &Step) -> Row {
    let millis =
        |name: &str, seconds: Option<f64>| MILLIS.of(name, seconds.map(|seconds| seconds * 1e6));
    let Step {
        load,
        received,
        stored,
        flush,
        ..
    } = step;
    let shown = ["p50", "p99", "p99.9", "max"];
    step.row(MILLIS.percentiles("edge latency, ", load.latency, &shown))
        .with([
            millis("accepted to received, p50", received.p50),
            millis("accepted to received, p99", received.p99),
            millis("accepted to stored, p50", stored.p50),
            millis("accepted to stored, p99", stored.p99),
            millis("flush, p50", flush.p50),
            millis("flush, p99", flush.p99),
        ])
}

const PROCESSES: &str = "Cores: used during the load. CPU: user and kernel time until all cookies were stored, per accepted cookie. \
    Peak: maximum memory since the process started.";

fn process(used: &ProcessUse) -> [Measurement; 4] {
    [
        DECIMAL.of("cores", used.cores),
        CPU.of("CPU per cookie", used.cpu_micros_per_cookie),
        MEBIBYTES.of("resident", used.resident_bytes),
        MEBIBYTES.of("peak", used.peak_bytes),
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

const PAIRS: &str = "Pairs of a user and a DSP in each store, compared with the accepted requests.";

fn pairs(verdict: &StoreVerdict) -> [Measurement; 6] {
    [
        COUNT.of("stored", verdict.stored),
        COUNT.of("correct", verdict.correct),
        COUNT.of("missing", verdict.missing),
        COUNT.of("stale", verdict.stale),
        COUNT.of("wrong", verdict.wrong),
        COUNT.of("unexpected", verdict.unexpected),
    ]
}
