//! `bench e2e`: runs producers, consumers and stores on this machine at increasing request rates, and verifies every store.
//!
//! A run starts the cluster ([`testkit::cluster`]) and observes it every second ([`testkit::observe`]). It generates
//! open-loop load at each rate, and waits until all accepted cookies are stored. At the end it stops producers and
//! consumers cleanly and reads all stores ([`crate::verify`]).

mod cluster_run;
mod drive;
mod plots;
mod report;
mod step;
mod verification;

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use clap::Args;
use runtime::settings::time;
use testkit::cluster::ClusterArgs;
use tokio_util::sync::CancellationToken;

use self::step::Step;
pub use self::{
    cluster_run::{ClusterRun, LoadRun, NodeLossPredicate, Settlement},
    drive::DriveArgs,
    plots::plots,
    verification::Verification,
};
use crate::{
    report::{Report, ReportArgs},
    values::{TIME_MAX, parse_rate},
};

/// Duration of the warm-up at the first rate, which creates databases and fills buffers.
const WARM_UP: Duration = Duration::from_secs(1);

/// Minimum duration of a step: the first second fills buffers.
const STEP_MIN: Duration = Duration::from_secs(3);

/// Measure the capacity of the whole system on this machine, and verify every store.
///
/// Starts producers and consumers on free loopback ports, each consumer with its own mongod, and increases the request rate in
/// steps. Each step reports accepted and stored cookies, latency, and the CPU and memory of each process. Ctrl-C ends the run
/// early; stores are still verified and the report is printed. The exit code is 1 if a store does not contain exactly the
/// accepted cookies, if cookies were lost or failed, or a process did not shut down cleanly.
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
    #[arg(long, value_parser = time(STEP_MIN..=TIME_MAX), default_value = "15s")]
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
    let mut run = ClusterRun::start(&args.cluster, stop).await?;
    let seed = args.drive.seed();
    let mut plan = args.drive.plan(seed, &run.cluster)?;
    let (mut steps, mut sources, mut remaining) = (Vec::new(), Vec::new(), 0);
    let warm_up = args.rates.first().map(|rate| (*rate, WARM_UP));
    let loads = args.rates.iter().map(|rate| (*rate, args.step));
    for (index, (rate, duration)) in warm_up.into_iter().chain(loads).enumerate() {
        if stop.is_cancelled() || run.failure.is_some() || remaining > 0 {
            break;
        }
        match index {
            0 => eprintln!("warming up"),
            _ => eprintln!("step {index} of {}: {rate}/s", args.rates.len()),
        }
        let first = run.observer.observations().len();
        plan.rate = Some(rate);
        plan.duration = Some(duration);
        let check = async |run: &mut ClusterRun, _| run.cluster.check();
        let Some(mut load_run) = run.drive(plan.clone(), stop, check).await else {
            break;
        };
        // Each load uses different connection numbers of the traffic.
        plan.first_connection += plan.connections.get() as u64;
        sources.append(&mut load_run.sources);
        let interrupted = stop.is_cancelled().then_some("interrupted");
        let settled = run.settle(|_, now| now.backlog() == 0).await;
        remaining = settled.remaining;
        if index > 0 {
            let exited = run.failure.as_ref().map(|_| "process exited");
            let observed = &run.observer.observations()[first..];
            let ended_early = exited.or(interrupted);
            let step = Step::new(rate.get(), load_run, observed, settled, ended_early);
            eprintln!("{}", step.line());
            steps.push(step);
        }
    }
    let mut failures = run.stop().await;
    let verification = if remaining > 0 && !failures.is_empty() {
        // Cookies that are not stored yet would count as missing.
        Verification::not_stored(remaining)
    } else {
        run.verify(sources, &|_, _, _| false, &|_| false).await
    };
    let mut report = report::report(&args.cluster, &steps);
    report.seconds = run.started.elapsed().as_secs_f64();
    verification.add_to(&mut report);
    report.failures.append(&mut failures);
    if remaining > 0 && steps.len() < args.rates.len() && !stop.is_cancelled() {
        report
            .findings
            .push("remaining steps skipped: the backlog was not stored in time".to_owned());
    }
    report.findings.push(format!(
        "duration {:.0} s{}; seed {seed}",
        report.seconds,
        if stop.is_cancelled() {
            ", interrupted"
        } else {
            ""
        },
    ));
    report.plots = plots(run.observer.observations(), run.started);
    Ok(report)
}
