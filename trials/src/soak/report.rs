//! Report of a soak run: events, measurements, and comparison of missing cookies with the losses that consumers reported.

use bench::{
    e2e::{LoadRun, Settlement, Verification, plots},
    report::{
        Measurement, Report, Row, plural,
        unit::{COUNT, MILLIS, RATE, SECONDS},
    },
};
use testkit::{
    numbers::{grouped, per_second, rate},
    observe::{Observation, Role},
    scrape::names,
};
use tokio::time::Instant;

use super::{allowed_losses::AllowedLosses, args::SoakArgs, inject::FaultInjector};

/// Data of a finished run.
pub(super) struct RunData<'a> {
    pub(super) args: &'a SoakArgs,
    pub(super) seed: u64,
    pub(super) load_run: &'a LoadRun,
    pub(super) settled: Settlement,
    pub(super) edge_is_affected: bool,
    pub(super) injector: &'a FaultInjector,
    /// Allowed losses by node name.
    pub(super) allowed: &'a [(String, AllowedLosses)],
    pub(super) verification: &'a Verification,
    pub(super) observations: &'a [Observation],
}

pub(super) fn report(run: &RunData<'_>) -> Report {
    let (cluster, outcome) = (&run.args.cluster, &run.load_run.outcome);
    let title = format!(
        "{} → {} → {}, {} for {:.0} s; seed {}",
        plural(cluster.producers.get(), "producer"),
        plural(cluster.consumers.get(), "consumer"),
        cluster.store.name(),
        rate(run.args.rate.get() as f64),
        outcome.seconds,
        run.seed
    );
    let mut report = Report::new("soak", &title);
    report.seconds = outcome.seconds;
    let events = run.injector.events.iter().map(|(seconds, description)| {
        let when = SECONDS.of("time", *seconds);
        let what = Measurement::text("event", description);
        Row::new("", [when, what])
    });
    report.add("Faults", "", events.collect::<Vec<_>>());
    report.add("Load", "", [load(run)]);
    let last = run.observations.last().into_iter();
    let nodes = last.flat_map(|last| last.of(Role::Consumer));
    let nodes = nodes.map(|node| {
        let count = |name, metric| COUNT.of(name, node.counts.of(metric));
        let counts = [
            count("lost", names::LOST),
            count("uncertain restarts", names::UNCERTAIN_RESTARTS),
        ];
        Row::new(&node.name, counts)
    });
    report.add("Reported by the consumers", "", nodes.collect::<Vec<_>>());
    run.verification.add_to(&mut report);
    let failed = outcome.counts.errors();
    if failed > 0 && !run.edge_is_affected {
        report.failures.push(format!(
            "{failed} requests were rejected or unanswered, although no fault affected a producer"
        ));
    }
    check_losses(run, &mut report);
    report.plots = plots(run.observations, run.load_run.before.at);
    report
}

fn load(run: &RunData<'_>) -> Row {
    let outcome = &run.load_run.outcome;
    let counts = &outcome.counts;
    let backlogs = run.observations.iter().map(Observation::backlog);
    let shown = ["p50", "p99", "p99.9", "max"];
    let measurements = [
        COUNT.of("requests sent", counts.sent),
        COUNT.of("requests accepted", counts.accepted),
        RATE.of("accepted", per_second(counts.accepted, outcome.seconds)),
        COUNT.of("rejected", counts.errors() - counts.unanswered),
        COUNT.of("unanswered", counts.unanswered),
        COUNT.of("unsent", counts.unsent),
        COUNT.of("peak backlog", backlogs.max().unwrap_or(0)),
        SECONDS.of("time to store it", run.settled.seconds),
    ];
    Row::new("", measurements).with(MILLIS.percentiles(
        "edge latency, ",
        outcome.latency_micros,
        &shown,
    ))
}

/// Compares missing cookies with the losses reported by consumers.
fn check_losses(run: &RunData<'_>, report: &mut Report) {
    let began: Instant = run.load_run.before.at;
    for verdict in &run.verification.verdicts {
        let of_node = run.allowed.iter().find(|(node, _)| *node == verdict.node);
        let Some((node, allowed)) = of_node.filter(|_| verdict.explained > 0) else {
            continue;
        };
        let exceeded = allowed.exceeded(&verdict.lost, began);
        let exceeded = exceeded.iter().map(|it| format!("{node}: {it}"));
        report.failures.extend(exceeded);
        let reported = allowed.reported;
        report.findings.push(format!(
            "{node}: {} missing or stale pairs (at least {} requests) are explained by losses reported by its consumer: gaps ({} \
             cookies) and epoch ends ({}, up to {} cookies, {} without a bound; producers were killed {})",
            grouped(verdict.explained),
            grouped(verdict.lost.len() as u64),
            grouped(reported.cookies_in_gaps),
            grouped(reported.epoch_ends),
            grouped(reported.cookies_at_ends_max),
            grouped(reported.ends_without_bound),
            plural(run.injector.killed, "time")
        ));
    }
}
