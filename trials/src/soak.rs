//! `trials soak`: the cluster of `bench e2e` under constant load and injected faults. At the end, every accepted cookie must be
//! in every store, except for losses that consumers reported.

mod allowed_losses;
mod args;
mod inject;
mod plan;
mod report;
mod reported_losses;
#[cfg(test)]
mod tests;

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, bail};
use bench::{
    e2e::{ClusterRun, Settlement, Verification},
    load::Plan,
    report::Report,
    verify::LostRequest,
};
use runtime::unix_micros;
use testkit::{
    cluster::{StoreChoice, netns},
    observe::{Observation, Role},
    scrape::names,
    tools::skip,
};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::{
    allowed_losses::AllowedLosses, inject::FaultInjector, plan::Topology, report::RunData,
    reported_losses::ClockPair,
};
pub use self::{
    args::{FaultArgs, SoakArgs},
    plan::FaultKind,
};

/// Idle time after which all cookies count as stored; longer than the delay of a chunk and a batch.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// Maximum time to recover holes after the load.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Interval between two ticks of the injector after the load.
const TICK_INTERVAL: Duration = Duration::from_millis(50);

/// Runs to the end, or until `stop`.
///
/// # Errors
/// The cluster or the load cannot be started. Later errors are failures of the report.
pub async fn run(args: &SoakArgs, stop: &CancellationToken) -> Result<Report> {
    let (producers, nodes) = (args.cluster.producers.get(), args.cluster.consumers.get());
    let mongods: Vec<_> = (0..nodes)
        .filter(|node| args.cluster.store.of_node(node + 1) == StoreChoice::Mongodb)
        .collect();
    let no_partitions = args
        .faults
        .may_partition()
        .then(netns::unavailable_reason)
        .flatten();
    let kinds = args
        .faults
        .kinds(!mongods.is_empty(), args.archive, no_partitions.as_deref())?;
    let mut cluster = args.cluster.clone();
    cluster.own_network |= kinds.iter().any(|(kind, _)| kind.partition().is_some());
    cluster.archive = args.archive;
    // The log of a consumer has its exact losses.
    let log = [
        "--log-format=json",
        "--log-filter=info,consumer::subscription=debug,consumer::recovery=debug",
    ];
    cluster.consumer_arg.extend(log.map(str::to_owned));
    let seed = args.drive.seed();
    let topology = Topology {
        producers,
        nodes,
        mongods,
        partition_max: args.faults.partition_max,
    };
    let plan = plan::plan(&kinds, &topology, args.duration, seed);
    let mut run = ClusterRun::start(&cluster, stop).await?;
    if args.faults.all_faults
        && let Some(reason) = &no_partitions
    {
        skip(format_args!("network partitions are unavailable: {reason}"));
    }
    eprintln!(
        "{}/s for {}, {} faults, seed {seed}",
        args.rate,
        humantime::format_duration(args.duration),
        plan.len()
    );

    let mut injector = FaultInjector::new(plan);
    let plan = Plan {
        rate: Some(args.rate),
        duration: Some(args.duration),
        ..args.drive.plan(seed, &run.cluster)?
    };
    let tick = async |run: &mut ClusterRun, elapsed| injector.tick(run, elapsed).await;
    let Some(mut load_run) = run.drive(plan, stop, tick).await else {
        bail!("the load did not start: {:?}", run.failure);
    };
    if let Err(error) = finish_faults(&mut run, &mut injector, load_run.before.at).await {
        run.fail(&error);
    }
    let settled = settle(&mut run).await;

    let logs = logs(&run);
    let mut failures = std::mem::take(&mut injector.failures);
    let stopped = run.stop().await;
    let is_clean = stopped.is_empty();
    failures.extend(stopped);
    let observations = run.observer.observations();
    let now = ClockPair {
        at: Instant::now(),
        unix_micros: unix_micros(),
    };
    let allowed = logs.into_iter().map(|(name, log)| {
        let log = log.unwrap_or_else(|error| {
            failures.push(format!("{name}: its losses are unknown: {error:#}"));
            String::new()
        });
        (name, AllowedLosses::new(&log, observations, now))
    });
    let allowed: Vec<_> = allowed.collect();
    let sources = std::mem::take(&mut load_run.sources);
    let verification = if settled.remaining > 0 && !is_clean {
        Verification::not_stored(settled.remaining)
    } else {
        let explain = |node: usize, source: &_, number| {
            let (_, allowed) = &allowed[node];
            allowed.cover(&LostRequest::of(source, number))
        };
        let was_restarted = |node: usize| injector.restarted.contains(&node);
        run.verify(sources, &explain, &was_restarted).await
    };
    let mut report = report::report(&RunData {
        args,
        seed,
        load_run: &load_run,
        settled,
        edge_is_affected: kinds.iter().any(|(kind, _)| kind.affects_edge()),
        injector: &injector,
        allowed: &allowed,
        verification: &verification,
        observations: run.observer.observations(),
    });
    report.failures.append(&mut failures);
    Ok(report)
}

/// Logs of all consumers.
fn logs(run: &ClusterRun) -> Vec<(String, Result<String>)> {
    let nodes = run.cluster.nodes.iter();
    let read = nodes.map(|node| {
        let log = fs::read_to_string(node.process.log()).context("failed to read its log");
        (node.name.clone(), log)
    });
    read.collect()
}

/// Waits for the end of active faults.
async fn finish_faults(
    run: &mut ClusterRun,
    injector: &mut FaultInjector,
    began: Instant,
) -> Result<()> {
    injector.stop_injecting();
    while injector.is_active() && run.failure.is_none() {
        injector.tick(run, began.elapsed()).await?;
        sleep(TICK_INTERVAL).await;
    }
    match run.failure {
        None => run.cluster.wait_connected().await,
        Some(_) => Ok(()),
    }
}

/// Waits until no consumer reads from the archive: after a failure, a hole is read again within a minute.
async fn wait_recovered(run: &mut ClusterRun) {
    let deadline = Instant::now() + RECOVERY_TIMEOUT;
    loop {
        sleep(IDLE_TIME).await;
        let now = run.observe().await;
        let mut holes = now
            .of(Role::Consumer)
            .map(|it| it.run.of(names::RECOVERY_HOLES));
        if holes.all(|holes| holes == 0) || Instant::now() > deadline {
            return;
        }
    }
}

/// Waits until no process handles cookies. Counts of killed processes are lost, so the backlog is not reliable.
async fn settle(run: &mut ClusterRun) -> Settlement {
    eprintln!("waiting for the stores");
    wait_recovered(run).await;
    let mut settled = run.settle(is_idle).await;
    if settled.remaining == 0 {
        sleep(IDLE_TIME).await;
        let again = run.settle(is_idle).await;
        settled.seconds += again.seconds;
        settled.remaining = again.remaining;
    }
    settled
}

fn is_idle(before: &Observation, now: &Observation) -> bool {
    let mut lags = now.of(Role::Producer).map(|it| it.run.of(names::LAG));
    let settled = |at: &Observation| -> u64 {
        at.of(Role::Consumer)
            .map(|observed| observed.run.settled())
            .sum()
    };
    let is_empty = now.of(Role::Consumer).all(|observed| {
        let counts = &observed.run;
        let is_empty = counts.of(names::BUFFER_BYTES) == 0 && counts.of(names::RECOVERY_HOLES) == 0;
        is_empty && counts.of(names::RECEIVED) == counts.settled()
    });
    lags.all(|lag| lag == 0) && is_empty && settled(before) == settled(now)
}
