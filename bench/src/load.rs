//! `bench load`: sends sync requests to an edge, which is the HTTP port of a producer, and checks every response.
//!
//! Each thread runs its connections on its own runtime and shares nothing with other threads. With a rate, the load is
//! an open loop: requests are sent at their intended times whether or not responses arrive. Latency is measured from
//! those times, so that a stalled server cannot hide it.
//!
//! Path of a request: `plan` assigns a task to each connection, and `schedule` sets the send times. With `--hostile`,
//! `hostile` replaces the requests. `session` and `connection` send the request when `pacer` says that it is due, and check its response. `recorder`
//! counts the results of each thread (`threads`), and `second` merges them. `outcome` and `report` present the
//! results; `generator` judges whether the load generator distorted them.

mod args;
mod connection;
mod generator;
mod history;
mod hostile;
mod outcome;
mod pacer;
mod plan;
mod recorder;
mod report;
mod request;
mod response;
mod schedule;
mod second;
mod session;
mod thread_time;
mod threads;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::{
    args::{LoadArgs, TrafficArgs},
    generator::{Bottleneck, GeneratorVerdict},
    history::History,
    outcome::LoadOutcome,
    plan::Plan,
    recorder::RequestCounts,
    second::Second,
};
use self::{hostile::HostileMix, recorder::Interval, second::Collector, threads::Threads};
use crate::cpu;

/// How long a load with a rate may send late requests after its end.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Seconds without a response after which a load with a number of requests but no duration ends.
const SILENT_SECONDS_MAX: u64 = 30;

/// Runs a load to its end, or until `stop`.
///
/// # Errors
/// The address cannot be resolved, or a connection cannot be opened. The outcome counts later errors.
pub async fn run(plan: &Plan, stop: &CancellationToken) -> Result<LoadOutcome> {
    run_observed(plan, stop, |_| {}).await
}

/// Like [`run`]; calls `observe` after each second. `observe` must return quickly.
///
/// # Errors
/// As [`run`].
pub async fn run_observed(
    plan: &Plan,
    stop: &CancellationToken,
    mut observe: impl FnMut(&Second),
) -> Result<LoadOutcome> {
    let ending = stop.child_token();
    let streams = tokio::select! {
        streams = threads::open(plan) => streams?,
        () = stop.cancelled() => bail!("interrupted before all connections were open"),
    };
    let cpu_before = cpu::of_this_process();
    let started = Instant::now();
    let mut running = Threads::spawn(plan, streams, started, &ending);
    let deadline = match plan.duration {
        Some(end) if plan.rate.is_some() => end + LATE_TIMEOUT,
        end => end.unwrap_or(Duration::MAX),
    };
    let mut timer = std::pin::pin!(sleep(deadline));
    let mut collector = Collector::new(plan);
    let mut interrupted = false;
    let mut silent = 0;
    let last_due = plan.last_due().unwrap_or_default().as_secs();
    let mut observe = |second: &Second| {
        silent = if second.is_silent() { silent + 1 } else { 0 };
        if plan.ends_by_count() && silent >= SILENT_SECONDS_MAX && second.second >= last_due {
            ending.cancel();
        }
        observe(second);
    };
    loop {
        tokio::select! {
            interval = running.intervals.recv() => match interval {
                Some((thread, interval)) => collector.add(thread, &interval, &mut observe),
                None => break,
            },
            () = timer.as_mut(), if !ending.is_cancelled() => ending.cancel(),
            () = stop.cancelled(), if !interrupted => interrupted = true,
        }
    }
    let (mut threads, mut histories) = (Vec::new(), Vec::new());
    while let Some(ended) = running.join_next().await {
        let (shares, of_thread) = ended?;
        threads.extend(shares);
        histories.extend(of_thread);
    }
    histories.sort_by_key(History::connection);
    let hostile = match plan.hostile {
        true => HostileMix::new().counts(&histories),
        false => BTreeMap::new(),
    };
    let cpu = cpu::of_this_process().saturating_sub(cpu_before);
    let Interval {
        counts,
        times,
        last_response_nanos,
        ..
    } = collector.total;
    let mut lasted = Duration::from_nanos(last_response_nanos);
    if counts.unanswered + counts.unsent > 0 {
        let elapsed = started.elapsed();
        lasted = lasted.max(plan.last_due().map_or(elapsed, |due| due.min(elapsed)));
    }
    let send_delay = times.send_delay.percentiles();
    let is_behind = counts.unsent > 0 || send_delay.as_ref().is_some_and(GeneratorVerdict::is_late);
    let delay = times.generator_delay.percentiles();
    Ok(LoadOutcome {
        plan: plan.clone(),
        seconds: lasted.as_secs_f64(),
        interrupted,
        counts,
        latency_micros: times.latency.percentiles(),
        send_delay_micros: send_delay,
        generator: GeneratorVerdict::assess(delay, is_behind, &threads),
        cpu,
        by_second: collector.seconds,
        hostile,
        histories,
    })
}
