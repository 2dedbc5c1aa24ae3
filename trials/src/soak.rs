//! `trials soak`: the same cluster as `bench e2e` under constant load, while processes are killed, stopped and restarted;
//! then the proof that every accepted cookie is in every store, but for what a killed producer may have taken with it.

mod allowed_losses;
mod args;
mod inject;
mod outcome;
mod plan;
mod report;
mod reported_losses;
#[cfg(test)]
mod samples;

use std::{fs, num::NonZeroU64, time::Duration};

use anyhow::{Context as _, Result, bail};
use bench::{
    cluster::{ClusterArgs, StoreChoice, netns},
    e2e::{ClusterRun, DriveArgs, LoadResult, Settlement, Verification},
    load::Plan,
    memory,
    observe::{Observation, Role},
    report::{ReportArgs, grouped, write_report},
    tools::skip,
    values::{parse_rate, parse_time},
    verify::LostRequest,
};
use clap::Args;
use runtime::unix_micros;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::{
    allowed_losses::AllowedLosses, inject::FaultInjector, plan::Topology,
    reported_losses::ClockPair,
};
pub use self::{args::FaultArgs, inject::FaultEvent, outcome::SoakOutcome, plan::FaultKind};

/// Shorter loads measure nothing, and faults closer together would all be left out.
const TIME_MIN: Duration = Duration::from_secs(1);

/// How long nothing may move until all is taken to be stored: more than a chunk waits, and a batch.
const QUIET: Duration = Duration::from_secs(1);

/// How often the last faults are looked after when the load has ended.
const TICK_INTERVAL: Duration = Duration::from_millis(50);

/// What is kept of each request for the verification.
const REQUEST_BYTES: u128 = 16;

/// Drives the whole system at a constant rate while faults strike, and verifies every store in the end.
///
/// Faults are chosen by flags, each with a mean time between two of them; which process is struck, when and for how long is
/// drawn from the seed before it begins, and printed. A cookie may be missing where the system does not promise more: one that a
/// killed producer had accepted and not delivered, or one of a gap, and no more of them than the node's consumer reported. The exit
/// code is 1 when anything else is missing, wrong or never sent, or a process did not end in order.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// How long to send.
    #[arg(long = "for", value_name = "TIME", value_parser = |text: &str| parse_time(text, TIME_MIN), default_value = "10m")]
    pub lasts: Duration,
    /// Requests a second.
    #[arg(short = 'l', long, value_parser = parse_rate, default_value = "20000")]
    pub rate: NonZeroU64,
    /// What is started.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// What is sent.
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Which faults strike.
    #[command(flatten)]
    pub faults: FaultArgs,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Drives until the time is over, or `stop`; writes the report.
///
/// # Errors
/// When something cannot be started, or the report cannot be written. What goes wrong in between is a fault.
pub async fn run(args: &SoakArgs, stop: &CancellationToken) -> Result<SoakOutcome> {
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
        .kinds(!mongods.is_empty(), no_partitions.as_deref())?;
    let mut cluster = args.cluster.clone();
    cluster.own_network |= kinds.iter().any(|(kind, _)| kind.partition().is_some());
    // What a consumer lost, exactly, is read from its log.
    let log = [
        "--log-format=json",
        "--log-filter=info,consumer::subscription=debug",
    ];
    cluster.consumer_arg.extend(log.map(str::to_owned));
    cluster.check()?;
    args.check_memory(memory::of_machine())?;
    let dir = args.report.prepare("soak")?;
    let seed = args
        .drive
        .seed
        .unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let topology = Topology {
        producers,
        nodes,
        mongods,
        partition_max: args.faults.partition_max,
    };
    let plan = plan::plan(&kinds, &topology, args.lasts, seed);
    let mut run = ClusterRun::start(&cluster, stop).await?;
    if args.faults.all_faults
        && let Some(why) = &no_partitions
    {
        skip(format_args!("no network is cut: {why}"));
    }
    let what = format!(
        "{}/s for {}, {} faults, seed {seed}",
        args.rate,
        humantime::format_duration(args.lasts),
        plan.len()
    );
    eprintln!("{what}");

    let mut injector = FaultInjector::new(plan);
    let plan = Plan {
        rate: Some(args.rate),
        duration: Some(args.lasts),
        ..args.drive.plan(seed, &run.cluster)?
    };
    let mut load_run = run.drive(plan, stop, Some(&mut injector)).await;
    let interrupted = stop.is_cancelled();
    let began = load_run.before.at;
    if let Err(error) = finish_faults(&mut run, &mut injector, began).await {
        run.fail(&error);
    }
    let settled = settle(&mut run, stop).await;

    let logs = logs(&run);
    eprintln!("stopping");
    let mut failures = std::mem::take(&mut injector.failures);
    let stopped = run.stop().await;
    let is_orderly = stopped.is_empty();
    failures.extend(stopped);
    let observations = run.observer.observations();
    let now = ClockPair {
        at: Instant::now(),
        unix_micros: unix_micros(),
    };
    let allowed = logs.into_iter().map(|(name, log)| {
        let log = log.unwrap_or_else(|error| {
            failures.push(format!("{name} does not say what it lost: {error:#}"));
            String::new()
        });
        (name, AllowedLosses::new(&log, observations, now))
    });
    let allowed: Vec<_> = allowed.collect();
    let sources = std::mem::take(&mut load_run.result.sources);
    let verification = if settled.remaining > 0 && !is_orderly {
        Verification::failed(format!(
            "{} cookies were never stored",
            grouped(settled.remaining)
        ))
    } else {
        let explain = |node: usize, source: &_, number| {
            let (_, allowed) = &allowed[node];
            allowed.cover(&LostRequest::of(source, number))
        };
        let forgets_duplicates = |node: usize| injector.restarted.contains(&node);
        run.verify(sources, &explain, &forgets_duplicates, stop)
            .await
    };
    let mut outcome = SoakOutcome::new(outcome::Run {
        args,
        seed,
        interrupted,
        result: &load_run.result,
        before: &load_run.before,
        settled,
        kinds: &kinds,
        events: injector.events,
        killed: injector.killed,
        began,
        allowed,
        verification,
        failures,
        observations: run.observer.observations(),
    });
    let (problems, observer) = run.remove().await;
    outcome.failures.extend(problems);
    write_report(dir, || {
        report::report(&outcome, observer.observations(), began)
    })?;
    Ok(outcome)
}

/// The log of each node's consumer.
fn logs(run: &ClusterRun) -> Vec<(String, Result<String>)> {
    let nodes = run.cluster.nodes.iter();
    let read = nodes.map(|node| {
        let log = fs::read_to_string(node.process.log()).context("its log");
        (node.name.clone(), log)
    });
    read.collect()
}

impl SoakArgs {
    /// Refuses what would not leave half of the machine's memory to everything else.
    fn check_memory(&self, memory_bytes: u64) -> Result<()> {
        let requests = u128::from(self.rate.get()) * self.lasts.as_millis() / 1_000;
        let needed = requests * REQUEST_BYTES;
        if needed > u128::from(memory_bytes / 2) {
            bail!(
                "the verification of {requests} requests needs {} GiB of memory, more than half of this machine's {} GiB: lower \
                 --rate or --for",
                needed >> 30,
                memory_bytes >> 30
            );
        }
        Ok(())
    }
}

/// Ends the faults that have begun.
async fn finish_faults(
    run: &mut ClusterRun,
    injector: &mut FaultInjector,
    began: Instant,
) -> Result<()> {
    injector.stop_injecting();
    while injector.is_active() && run.failure.is_none() {
        run.tick(injector, began.elapsed()).await?;
        sleep(TICK_INTERVAL).await;
    }
    match run.failure {
        None => run.cluster.wait_connected().await,
        Some(_) => Ok(()),
    }
}

/// Waits until nothing moves any more. Counts do not tell, since those of killed processes are lost.
async fn settle(run: &mut ClusterRun, stop: &CancellationToken) -> Settlement {
    eprintln!("waiting for the stores");
    let mut settled = run.settle(stop, is_quiet).await;
    if settled.remaining == 0 {
        sleep(QUIET).await;
        let again = run.settle(stop, is_quiet).await;
        settled.seconds += again.seconds;
        settled.remaining = again.remaining;
    }
    settled
}

fn is_quiet(before: &Observation, now: &Observation) -> bool {
    let lag: u64 = now
        .of(Role::Producer)
        .map(|observed| observed.run.lag)
        .sum();
    let settled = |at: &Observation| -> u64 {
        at.of(Role::Consumer)
            .map(|observed| observed.run.outcomes.settled())
            .sum()
    };
    let is_empty = now.of(Role::Consumer).all(|observed| {
        let counts = &observed.run;
        counts.buffer_bytes == 0 && counts.outcomes.received == counts.outcomes.settled()
    });
    lag == 0 && is_empty && settled(before) == settled(now)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: SoakArgs,
    }

    #[test]
    fn soak_that_memory_cannot_hold_is_refused() {
        let check = |flags: &str| {
            let flags = std::iter::once("program").chain(flags.split_ascii_whitespace());
            let args = Program::try_parse_from(flags).unwrap().args;
            args.check_memory(16 << 30)
        };
        // Half of it holds 2^29 requests.
        assert!(check("-l 100000 --for 1h").is_ok());
        let rejected = check("-l 100000 --for 2h").unwrap_err().to_string();
        assert!(
            rejected.contains("720000000 requests needs 10 GiB"),
            "{rejected}"
        );
    }
}
