//! `bench soak`: the same cluster as `bench e2e` under constant load, while processes are killed, stopped and restarted;
//! then the proof that every accepted cookie is in every store, but for what a killed producer may have taken with it.

mod args;
mod explain;
mod inject;
mod outcome;
mod plan;
mod report;

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use clap::Args;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::{args::FaultArgs, inject::Event, outcome::Outcome, plan::Kind};
use self::{explain::Gaps, inject::Injector};
use crate::{
    cluster::{ClusterArgs, StoreChoice},
    e2e::{
        DriveArgs, Settled, Verification,
        drive::{Drive, Driven},
        running::Running,
    },
    observe::{Observation, Role},
    report::{ReportArgs, leave},
};

/// How long nothing may move until all is taken to be stored: more than a chunk waits, and a batch.
const QUIET: Duration = Duration::from_secs(1);

/// How often the last faults are looked after when the load has ended.
const TURN_INTERVAL: Duration = Duration::from_millis(50);

/// Drives the whole system at a constant rate while faults strike, and verifies every store in the end.
///
/// Faults are chosen by flags, each with a mean time between two of them; which process is struck, when and for how long is
/// drawn from the seed before it begins, and printed. A cookie may be missing where the system does not promise more: one that a
/// killed producer had accepted and not delivered, or that a queue's bound dropped, which consumers report. The exit code
/// is 1 when anything else is missing, wrong or never sent, or a process did not end in order.
#[derive(Debug, Clone, Args)]
pub struct SoakArgs {
    /// How long to send.
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, default_value = "10m")]
    pub lasts: Duration,
    /// Requests a second.
    #[arg(short = 'l', long, default_value = "20000")]
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
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    pub json: bool,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Drives until the time is over, or `stop`; writes the report.
///
/// # Errors
/// When something cannot be started, ends by itself, or the report cannot be written.
pub async fn run(args: &SoakArgs, stop: &CancellationToken) -> Result<Outcome> {
    let kinds = args
        .faults
        .kinds(args.cluster.store == StoreChoice::Mongodb)?;
    let folder = args.report.prepare("soak")?;
    let seed = args
        .drive
        .seed
        .unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let (producers, nodes) = (args.cluster.producers.get(), args.cluster.consumers.get());
    let plan = plan::plan(&kinds, producers, nodes, args.lasts, seed);
    let mut running = Running::start(&args.cluster, stop).await?;
    let what = format!(
        "{}/s for {}, {} faults, seed {seed}",
        args.rate,
        humantime::format_duration(args.lasts),
        plan.len()
    );
    running.progress.begin(&what, Some(args.lasts));

    let mut injector = Injector::new(plan);
    let drive = Drive {
        rate: args.rate,
        lasts: args.lasts,
        ..Drive::new(&args.drive, seed, &running.cluster)
    };
    let mut drove = running.drive(drive, stop, Some(&mut injector)).await?;
    let interrupted = stop.is_cancelled();
    let began = drove.before.at;
    make_whole(&mut running, &mut injector, began).await?;
    let settled = settle(&mut running, stop).await;

    running.progress.begin("stopping", None);
    let mut faults = std::mem::take(&mut injector.faults);
    faults.extend(running.cluster.stop().await);
    let observations = running.observer.observations();
    let gaps = Gaps::new(&injector.killed, observations, nodes);
    let sources = std::mem::take(&mut drove.driven.sources);
    let verification = if settled.left > 0 {
        Verification {
            not_verified: Some(format!(
                "{} cookies were still waiting to be stored",
                settled.left
            )),
            ..Verification::default()
        }
    } else {
        let explain = |node, source: &_, number| gaps.may_hold(node, source, number);
        running.verify(sources, &explain, stop).await?
    };
    let outcome = Outcome::new(outcome::Run {
        args,
        seed,
        interrupted,
        driven: &drove.driven,
        before: &drove.before,
        settled,
        kinds: &kinds,
        events: injector.events,
        killed: injector.killed.len(),
        verification,
        faults,
        observations: running.observer.observations(),
    });
    let report = report::report(&outcome, running.observer.observations(), began)?;
    leave(folder, || report)?;
    if let Some(kept) = running.cluster.remove().await? {
        eprintln!("kept      {}", kept.display());
    }
    Ok(outcome)
}

/// Ends the faults that have begun.
async fn make_whole(running: &mut Running, injector: &mut Injector, began: Instant) -> Result<()> {
    injector.begin_no_more();
    while injector.is_active() {
        running.turn(injector, began.elapsed()).await?;
        sleep(TURN_INTERVAL).await;
    }
    running.cluster.wait_connected().await
}

/// Waits until nothing moves any more. Counts do not tell, since those of killed processes are lost.
async fn settle(running: &mut Running, stop: &CancellationToken) -> Settled {
    running.progress.begin("waiting for the stores", None);
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
    let lag: u64 = now
        .of(Role::Producer)
        .map(|seen| seen.life.producer.lag)
        .sum();
    let settled = |at: &Observation| -> u64 {
        at.of(Role::Consumer)
            .map(|seen| seen.life.consumer.settled())
            .sum()
    };
    let is_empty = now.of(Role::Consumer).all(|seen| {
        let counts = &seen.life.consumer;
        counts.buffer_bytes == 0 && counts.received == counts.settled()
    });
    lag == 0 && is_empty && settled(before) == settled(now)
}
