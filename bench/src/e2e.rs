//! `bench e2e`: runs producers, consumers and stores on this machine at increasing request rates, and verifies every store.
//!
//! A run starts the cluster ([`crate::cluster`]) and observes it every second ([`crate::observe`]). It generates
//! open-loop load at each rate, and waits until all accepted cookies are stored. At the end it stops producers and
//! consumers cleanly and reads all stores ([`crate::verify`]).

mod cluster_run;
mod drive;
mod measure;
mod report;
mod step;
mod verdict;
mod verification;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::Result;
use clap::Args;
use tokio_util::sync::CancellationToken;

pub use self::{
    cluster_run::{
        ClusterRun, EarlyEnd, Injector, InjectorAction, LoadRun, NodeLossPredicate, Settlement,
    },
    drive::{DriveArgs, LoadResult},
    verification::Verification,
};
use self::{measure::StepObservations, step::Step};
use crate::{
    cluster::{ClusterArgs, StoreChoice},
    load::Plan,
    observe::plots,
    report::{Report, ReportArgs, grouped},
    scrape::names,
    values::{parse_rate, parse_time},
    verify::Source,
};

/// Duration of the warm-up at the first rate, which creates databases and fills buffers.
const WARM_UP: Duration = Duration::from_secs(1);

/// Minimum duration of a step: the first second fills buffers, and both halves are compared.
const STEP_MIN: Duration = Duration::from_secs(3);

/// Measure the capacity of the whole system on this machine, and verify every store.
///
/// Starts producers and consumers on free loopback ports, each consumer with its own mongod, and increases the request rate in
/// steps. Each step reports accepted and stored cookies, latency, the CPU and memory of each process, and the bottleneck of a
/// rate that is not sustained. Ctrl-C ends the run early; stores are still verified and the report is printed. The exit code
/// is 1 if a store does not contain exactly the accepted cookies, if cookies were lost or failed, or a process did not shut down cleanly.
#[derive(Debug, Clone, Args)]
pub struct E2eArgs {
    /// Requests per second of each step.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = parse_rate,
        default_value = "10000,20000,50000,120000,200000"
    )]
    pub rates: Vec<NonZeroU64>,
    /// Duration of each step (minimum 3s).
    #[arg(long, value_parser = |text: &str| parse_time(text, STEP_MIN), default_value = "15s")]
    pub step: Duration,
    /// Options of the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Options of the load.
    #[command(flatten)]
    pub drive: DriveArgs,
    /// Output options.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Runs all steps, or stops early on `stop`.
///
/// # Errors
/// The cluster cannot be started. Later errors are failures of the report.
pub async fn run(args: &E2eArgs, stop: &CancellationToken) -> Result<Report> {
    args.cluster.check()?;
    let mut run = ClusterRun::start(&args.cluster, stop).await?;
    let seed = args
        .drive
        .seed
        .unwrap_or_else(|| u64::from(fastrand::u32(..)));
    let mut ladder = Ladder {
        args,
        plan: args.drive.plan(seed, &run.cluster)?,
        cores: std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        flush_interval: args.cluster.flush_interval()?,
        steps: Vec::new(),
        sources: Vec::new(),
        findings: Vec::new(),
        remaining: 0,
    };
    ladder.climb(&mut run, stop).await;
    let mut report = ladder.finish(&mut run, stop).await;
    let (problems, observer) = run.remove().await;
    report.failures.extend(problems);
    let observations = observer.observations();
    report.plots = observations
        .first()
        .map_or_else(Vec::new, |first| plots(observations, first.at));
    Ok(report)
}

/// State of the run.
struct Ladder<'a> {
    args: &'a E2eArgs,
    /// The next load. Each load uses different connection numbers of the traffic.
    plan: Plan,
    cores: usize,
    flush_interval: Duration,
    steps: Vec<Step>,
    sources: Vec<Source>,
    findings: Vec<String>,
    /// Cookies of the last backlog that were not stored before the timeout.
    remaining: u64,
}

impl Ladder<'_> {
    async fn climb(&mut self, run: &mut ClusterRun, stop: &CancellationToken) {
        let rate = self.args.rates.first().copied().unwrap_or(NonZeroU64::MIN);
        eprintln!("warming up");
        self.drive(run, rate, WARM_UP, stop).await;
        for (index, rate) in self.args.rates.iter().enumerate() {
            if stop.is_cancelled() || run.failure.is_some() || self.remaining > 0 {
                break;
            }
            eprintln!("step {} of {}: {rate}/s", index + 1, self.args.rates.len());
            self.step(run, *rate, stop).await;
        }
        if self.remaining > 0 && !stop.is_cancelled() {
            self.findings.push(format!(
                "remaining steps skipped: {} cookies of the backlog were not stored in time",
                grouped(self.remaining)
            ));
        }
    }

    async fn step(&mut self, run: &mut ClusterRun, rate: NonZeroU64, stop: &CancellationToken) {
        let first = run.observer.observations().len();
        let (mut load_run, settled) = self.drive(run, rate, self.args.step, stop).await;
        if run.failure.is_some() {
            load_run.ended_early = Some(EarlyEnd::ProcessExited);
        }
        let observed = &run.observer.observations()[first..];
        let measured = StepObservations {
            rate: rate.get(),
            duration: self.args.step,
            load_run: &load_run,
            observed,
            settled,
            end: observed.last().unwrap_or(&load_run.after),
            flush_interval: self.flush_interval,
            cores: self.cores,
        };
        let mut step = measured.step();
        if let (Some(EarlyEnd::ProcessExited), Some(failure)) = (step.ended_early, &run.failure) {
            let first = failure.split([';', '\n']).next().unwrap_or_default();
            step.reason = Some(first.to_owned());
        }
        eprintln!("{}", step.line());
        self.steps.push(step);
    }

    /// Sends requests at one rate, and waits until the backlog is stored.
    async fn drive(
        &mut self,
        run: &mut ClusterRun,
        rate: NonZeroU64,
        duration: Duration,
        stop: &CancellationToken,
    ) -> (LoadRun, Settlement) {
        let plan = Plan {
            rate: Some(rate),
            duration: Some(duration),
            ..self.plan.clone()
        };
        self.plan.first_connection += self.plan.connections.get() as u64;
        let mut load_run = run.drive(plan, stop, None).await;
        self.sources.append(&mut load_run.sources);
        let settled = run.settle(stop, |_, now| now.backlog() == 0).await;
        self.remaining = settled.remaining;
        (load_run, settled)
    }

    async fn finish(mut self, run: &mut ClusterRun, stop: &CancellationToken) -> Report {
        let interrupted = stop.is_cancelled();
        eprintln!("stopping");
        let mut failures = run.stop().await;
        let has_store = self.args.cluster.store != StoreChoice::Nothing;
        let verification = if self.remaining > 0 && !(failures.is_empty() && has_store) {
            // Cookies that are not stored yet would count as missing.
            Verification::failed(format!(
                "{} cookies of the backlog were not stored in time",
                grouped(self.remaining)
            ))
        } else {
            let sources = std::mem::take(&mut self.sources);
            run.verify(sources, &|_, _, _| false, &|_| false, stop)
                .await
        };
        failures.extend(verification.failures());
        failures.extend(self.steps.iter().flat_map(failures_of));
        let (cluster, steps) = (&self.args.cluster, &self.steps);
        let consumers = cluster.consumers.get();
        let mut report = report::report(cluster, steps, &verification);
        report.seconds = run.started.elapsed().as_secs_f64();
        report.failures = failures;
        report.findings = verdict::findings(steps, consumers, self.cores);
        report.findings.append(&mut self.findings);
        report.findings.extend(verdict::cost(steps, consumers));
        report.findings.extend(verification.lines());
        report.findings.push(format!(
            "duration {:.0} s{}; seed {}",
            report.seconds,
            if interrupted { ", interrupted" } else { "" },
            self.plan.traffic.seed()
        ));
        report
    }
}

/// Events that are failures at any rate.
fn failures_of(step: &Step) -> Vec<String> {
    let mut failures = Vec::new();
    let (lost, failed) = step.lost_and_failed();
    for (count, problem) in [
        (lost, "were lost"),
        (failed, "could not be stored"),
        (step.rejected(), "were rejected by the edge"),
        (step.load.counts.unanswered, "received no response"),
    ] {
        if count > 0 {
            failures.push(format!("{}/s: {count} cookies {problem}", step.rate));
        }
    }
    if step.settled.remaining == 0 {
        for (name, counts) in &step.nodes {
            let (received, accepted) = (counts.of(names::RECEIVED), step.accepted());
            if received != accepted {
                failures.push(format!(
                    "{}/s: {name} received {received} of {accepted} accepted cookies",
                    step.rate
                ));
            }
        }
    }
    failures
}
