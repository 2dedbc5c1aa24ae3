//! `trials soak`: the same cluster as `bench e2e` under constant load, while processes are killed, stopped and restarted;
//! then the proof that every accepted cookie is in every store, but for what a killed producer may have taken with it.

mod allowed;
mod args;
mod inject;
mod outcome;
mod plan;
mod report;
mod reported;
#[cfg(test)]
mod samples;

use std::{fs, num::NonZeroU64, time::Duration};

use anyhow::{Context as _, Result, bail};
use bench::{
    cluster::{ClusterArgs, StoreChoice, netns},
    e2e::{DriveArgs, Driven, Running, Settled, Verification},
    load::Plan,
    memory,
    observe::{Observation, Role},
    report::{ReportArgs, grouped, leave},
    tools::skip,
    values::{parse_rate, parse_time},
    verify::Lost,
};
use clap::Args;
use runtime::unix_micros;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::{allowed::AllowedLosses, inject::Injector, plan::Scene, reported::Moment};
pub use self::{args::FaultArgs, inject::Event, outcome::Outcome, plan::Kind};

/// Shorter loads measure nothing, and faults closer together would all be left out.
const TIME_MIN: Duration = Duration::from_secs(1);

/// How long nothing may move until all is taken to be stored: more than a chunk waits, and a batch.
const QUIET: Duration = Duration::from_secs(1);

/// How often the last faults are looked after when the load has ended.
const TURN_INTERVAL: Duration = Duration::from_millis(50);

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
pub async fn run(args: &SoakArgs, stop: &CancellationToken) -> Result<Outcome> {
    let (producers, nodes) = (args.cluster.producers.get(), args.cluster.consumers.get());
    let mongods: Vec<_> = (0..nodes)
        .filter(|node| args.cluster.store.of_node(node + 1) == StoreChoice::Mongodb)
        .collect();
    let no_cuts = args.faults.may_cut().then(netns::missing).flatten();
    let kinds = args.faults.kinds(!mongods.is_empty(), no_cuts.as_deref())?;
    let mut cluster = args.cluster.clone();
    cluster.own_network |= kinds.iter().any(|(kind, _)| kind.cuts().is_some());
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
    let scene = Scene {
        producers,
        nodes,
        mongods,
        cut_max: args.faults.partition_max,
    };
    let plan = plan::plan(&kinds, &scene, args.lasts, seed);
    let mut running = Running::start(&cluster, stop).await?;
    if args.faults.all_faults
        && let Some(why) = &no_cuts
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

    let mut injector = Injector::new(plan);
    let plan = Plan {
        rate: Some(args.rate),
        duration: Some(args.lasts),
        ..args.drive.plan(seed, &running.cluster)?
    };
    let mut drove = running.drive(plan, stop, Some(&mut injector)).await;
    let interrupted = stop.is_cancelled();
    let began = drove.before.at;
    if let Err(error) = make_whole(&mut running, &mut injector, began).await {
        running.end(&error);
    }
    let settled = settle(&mut running, stop).await;

    let logs = logs(&running);
    eprintln!("stopping");
    let mut faults = std::mem::take(&mut injector.faults);
    let stopped = running.stop().await;
    let is_orderly = stopped.is_empty();
    faults.extend(stopped);
    let observations = running.observer.observations();
    let now = Moment {
        at: Instant::now(),
        unix_micros: unix_micros(),
    };
    let allowed = logs.into_iter().map(|(name, log)| {
        let log = log.unwrap_or_else(|error| {
            faults.push(format!("{name} does not say what it lost: {error:#}"));
            String::new()
        });
        (name, AllowedLosses::new(&log, observations, now))
    });
    let allowed: Vec<_> = allowed.collect();
    let sources = std::mem::take(&mut drove.driven.sources);
    let verification = if settled.left > 0 && !is_orderly {
        Verification::failed(format!(
            "{} cookies were never stored",
            grouped(settled.left)
        ))
    } else {
        let explain = |node: usize, source: &_, number| {
            let (_, allowed) = &allowed[node];
            allowed.cover(&Lost::of(source, number))
        };
        let forgets_repeats = |node: usize| injector.restarted.contains(&node);
        running
            .verify(sources, &explain, &forgets_repeats, stop)
            .await
    };
    let mut outcome = Outcome::new(outcome::Run {
        args,
        seed,
        interrupted,
        driven: &drove.driven,
        before: &drove.before,
        settled,
        kinds: &kinds,
        events: injector.events,
        killed: injector.killed,
        began,
        allowed,
        verification,
        faults,
        observations: running.observer.observations(),
    });
    let (problems, observer) = running.remove().await;
    outcome.faults.extend(problems);
    leave(dir, || {
        report::report(&outcome, observer.observations(), began)
    })?;
    Ok(outcome)
}

/// The log of each node's consumer.
fn logs(running: &Running) -> Vec<(String, Result<String>)> {
    let nodes = running.cluster.nodes.iter();
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
async fn make_whole(running: &mut Running, injector: &mut Injector, began: Instant) -> Result<()> {
    injector.begin_no_more();
    while injector.is_active() && running.ended.is_none() {
        running.turn(injector, began.elapsed()).await?;
        sleep(TURN_INTERVAL).await;
    }
    match running.ended {
        None => running.cluster.wait_connected().await,
        Some(_) => Ok(()),
    }
}

/// Waits until nothing moves any more. Counts do not tell, since those of killed processes are lost.
async fn settle(running: &mut Running, stop: &CancellationToken) -> Settled {
    eprintln!("waiting for the stores");
    let mut settled = running.settle(stop, is_quiet).await;
    if settled.left == 0 {
        sleep(QUIET).await;
        let again = running.settle(stop, is_quiet).await;
        settled.seconds += again.seconds;
        settled.left = again.left;
    }
    settled
}

fn is_quiet(before: &Observation, now: &Observation) -> bool {
    let lag: u64 = now.of(Role::Producer).map(|seen| seen.run.lag).sum();
    let settled = |at: &Observation| -> u64 {
        at.of(Role::Consumer)
            .map(|seen| seen.run.fates.settled())
            .sum()
    };
    let is_empty = now.of(Role::Consumer).all(|seen| {
        let counts = &seen.run;
        counts.buffer_bytes == 0 && counts.fates.received == counts.fates.settled()
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
        let refused = check("-l 100000 --for 2h").unwrap_err().to_string();
        assert!(
            refused.contains("720000000 requests needs 10 GiB"),
            "{refused}"
        );
    }
}
