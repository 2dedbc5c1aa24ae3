//! `bench e2e`: real producers, consumers and stores on this machine, a ladder of rates, and the proof that every accepted
//! cookie is in every store.
//!
//! The way of a run: everything is started ([`crate::cluster`]) and looked at each second ([`crate::observe`]); each
//! rate is driven as an open loop, then its backlog is waited for; in the end producers and consumers are stopped in
//! order, and all stores are read whole ([`crate::verify`]).

mod drive;
mod measure;
mod outcome;
mod report;
mod running;
mod step;
mod verdict;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::measure::StepObservations;
pub use self::{
    drive::{DriveArgs, LoadResult},
    outcome::E2eOutcome,
    running::{
        ClusterRun, EarlyEnd, Injector, InjectorAction, LoadRun, NodeLossPredicate, Settlement,
        Verification,
    },
    step::{NodeCounts, ProcessUse, Quantiles, Step},
};
use crate::{
    cluster::{ClusterArgs, StoreChoice},
    load::Plan,
    report::{ReportArgs, grouped, write_report},
    values::{parse_rate, parse_time},
    verify::Source,
};

/// How long the first rate is sent before the ladder, for what is made once: MongoDB's databases, processes' buffers.
const WARM_UP: Duration = Duration::from_secs(1);

/// Shorter loads say nothing of a rate: the first second fills what is empty, and two halves are compared.
const STEP_MIN: Duration = Duration::from_secs(3);

/// Drives the whole system, on this machine, through a ladder of rates, and verifies every store in the end.
///
/// It starts producers, consumers and a mongod for each of these, on free loopback ports, in a temporary directory. Each step says
/// what was accepted and stored, how long that took, what each process cost, and if the rate is too much, where it stops and
/// why. Ctrl-C ends it early, stops everything it started, verifies and reports. The exit code is 1 when a store has
/// not exactly what was accepted, cookies were lost or failed, or a process did not end in order.
#[derive(Debug, Clone, Args)]
pub struct E2eArgs {
    /// Requests a second, step by step.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_rate,
        default_value = "10000,20000,50000,120000,200000"
    )]
    pub rates: Vec<NonZeroU64>,
    /// How long each rate lasts, 3 s or longer.
    #[arg(long, value_parser = |text: &str| parse_time(text, STEP_MIN), default_value = "15s")]
    pub step: Duration,
    /// What is started.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// What is sent.
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Runs the ladder to its end, or until `stop`; writes the report.
///
/// # Errors
/// When something cannot be started, or the report cannot be written. What goes wrong in between is a fault.
pub async fn run(args: &E2eArgs, stop: &CancellationToken) -> Result<E2eOutcome> {
    args.cluster.check()?;
    let dir = args.report.prepare("e2e")?;
    let mut running = ClusterRun::start(&args.cluster, stop).await?;
    let seed = args
        .drive
        .seed
        .unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let mut ladder = Ladder {
        args,
        plan: args.drive.plan(seed, &running.cluster)?,
        cores: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        flush_interval: args.cluster.flush_interval()?,
        steps: Vec::new(),
        sources: Vec::new(),
        findings: Vec::new(),
        remaining: 0,
    };
    ladder.climb(&mut running, stop).await;
    let mut outcome = ladder.finish(&mut running, stop).await;
    let (problems, observer) = running.remove().await;
    outcome.failures.extend(problems);
    write_report(dir, || report::report(&outcome, observer.observations()))?;
    Ok(outcome)
}

/// What is known so far.
struct Ladder<'a> {
    args: &'a E2eArgs,
    /// With the first connection of the next load, since each has connections of its own in the traffic.
    plan: Plan,
    cores: usize,
    flush_interval: Duration,
    steps: Vec<Step>,
    sources: Vec<Source>,
    findings: Vec<String>,
    /// What is left of the last backlog, when it was waited for no longer.
    remaining: u64,
}

impl Ladder<'_> {
    async fn climb(&mut self, running: &mut ClusterRun, stop: &CancellationToken) {
        let rate = self.args.rates.first().copied().unwrap_or(NonZeroU64::MIN);
        eprintln!("warming up");
        self.drive(running, rate, WARM_UP, stop).await;
        for (index, rate) in self.args.rates.iter().enumerate() {
            if stop.is_cancelled() || running.ended.is_some() || self.remaining > 0 {
                break;
            }
            let what = format!("step {} of {}: {rate}/s", index + 1, self.args.rates.len());
            eprintln!("{what}");
            self.step(running, *rate, stop).await;
        }
        if self.remaining > 0 && !stop.is_cancelled() {
            self.findings.push(format!(
                "nothing more was sent: {} cookies were still waiting, and would have counted for the next rate",
                grouped(self.remaining)
            ));
        }
    }

    async fn step(&mut self, running: &mut ClusterRun, rate: NonZeroU64, stop: &CancellationToken) {
        let first = running.observer.observations().len();
        let (mut drove, settled) = self.drive(running, rate, self.args.step, stop).await;
        if running.ended.is_some() {
            drove.ended_early = Some(EarlyEnd::ProcessExited);
        }
        let seen = &running.observer.observations()[first..];
        let measured = StepObservations {
            rate: rate.get(),
            lasts: self.args.step,
            drove: &drove,
            seen,
            settled,
            end: seen.last().unwrap_or(&drove.after),
            flush_interval: self.flush_interval,
            cores: self.cores,
        };
        let mut step = measured.step();
        if let (Some(EarlyEnd::ProcessExited), Some(ended)) = (step.ended_early, &running.ended) {
            let first = ended.split([';', '\n']).next().unwrap_or_default();
            step.why = Some(format!("a process ended: {first}"));
        }
        eprintln!("{}", step.line());
        self.steps.push(step);
    }

    /// Drives one rate and waits for its backlog.
    async fn drive(
        &mut self,
        running: &mut ClusterRun,
        rate: NonZeroU64,
        lasts: Duration,
        stop: &CancellationToken,
    ) -> (LoadRun, Settlement) {
        let plan = Plan {
            rate: Some(rate),
            duration: Some(lasts),
            ..self.plan.clone()
        };
        self.plan.first_connection += self.plan.connections.get() as u64;
        let mut drove = running.drive(plan, stop, None).await;
        self.sources.append(&mut drove.driven.sources);
        let settled = running.settle(stop, |_, now| now.backlog() == 0).await;
        self.remaining = settled.remaining;
        (drove, settled)
    }

    async fn finish(mut self, running: &mut ClusterRun, stop: &CancellationToken) -> E2eOutcome {
        let interrupted = stop.is_cancelled();
        eprintln!("stopping");
        let mut failures = running.stop().await;
        let has_store = self.args.cluster.store != StoreChoice::Nothing;
        let verification = if self.remaining > 0 && !(failures.is_empty() && has_store) {
            // What is not stored yet is not wrong.
            Verification::failed(format!(
                "{} cookies were never stored",
                grouped(self.remaining)
            ))
        } else {
            let sources = std::mem::take(&mut self.sources);
            running
                .verify(sources, &|_, _, _| false, &|_| false, stop)
                .await
        };
        failures.extend(verification.failures());
        failures.extend(self.steps.iter().flat_map(failures_of));
        let mut outcome = E2eOutcome {
            consumers: self.args.cluster.consumers.get(),
            producers: self.args.cluster.producers.get(),
            store: self.args.cluster.store.name(),
            expiry: self.args.cluster.expiry().map(str::to_owned),
            seed: self.plan.traffic.seed(),
            cores: self.cores,
            seconds: Instant::now().duration_since(running.started).as_secs_f64(),
            interrupted,
            steps: self.steps,
            verification,
            findings: Vec::new(),
            failures,
        };
        outcome.findings = verdict::findings(&outcome);
        outcome.findings.append(&mut self.findings);
        outcome.findings.extend(verdict::cost(&outcome));
        outcome
    }
}

/// What must not happen at any rate.
fn failures_of(step: &Step) -> Vec<String> {
    let mut failures = Vec::new();
    let (lost, failed) = step.lost_and_failed();
    for (count, what) in [
        (lost, "were lost"),
        (failed, "could not be stored"),
        (step.rejected, "were refused by the edge"),
        (step.unanswered, "got no answer"),
    ] {
        if count > 0 {
            failures.push(format!("{}/s: {count} cookies {what}", step.rate));
        }
    }
    if step.settled.remaining == 0 {
        for node in step
            .nodes
            .iter()
            .filter(|node| node.outcomes.received != step.accepted)
        {
            let (name, received) = (&node.name, node.outcomes.received);
            failures.push(format!(
                "{}/s: {name} received {received} of {} accepted cookies",
                step.rate, step.accepted
            ));
        }
    }
    failures
}
