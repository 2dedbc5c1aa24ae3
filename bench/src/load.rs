//! `bench load`: sends sync requests to an edge and checks every answer.
//!
//! Each thread runs its share of the connections on a runtime of its own; nothing is shared between threads
//! while they run. With a schedule it is an open loop: requests have intended times and leave at them whether or not
//! answers came, and latency counts from those times, so a server that stalls cannot hide it.
//!
//! The way of a request: `plan` gives each connection its task, which makes the request; `schedule` says when it leaves;
//! `session` and `connection` send it and check its answer; `recorder` counts within the thread (`threads`), `second`
//! over all of them; `outcome` and `report` tell of it, and `generator` whether to believe it.

mod args;
mod connection;
mod generator;
mod history;
mod outcome;
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

use std::time::Duration;

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
use self::{recorder::Interval, second::Collector, threads::Threads};
use crate::cpu;

/// How long a load with a rate may take beyond its end to send what is late.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Seconds without any answer after which a load that only a number of requests would end is over.
const SILENT_SECONDS_MAX: u64 = 30;

/// Runs a load to its end, or until `stop`.
///
/// # Errors
/// When the address cannot be resolved or the connections cannot be opened at the start. Anything later is
/// counted in the outcome.
pub async fn run(plan: &Plan, stop: &CancellationToken) -> Result<LoadOutcome> {
    run_observed(plan, stop, |_| {}).await
}

/// Like [`run`]; `observe` sees each second as soon as it is over, and should not take long.
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
        () = stop.cancelled() => bail!("stopped before the connections were open"),
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
            part = running.intervals.recv() => match part {
                Some((thread, part)) => collector.take(thread, &part, &mut observe),
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
    let cpu = cpu::of_this_process().saturating_sub(cpu_before);
    let Interval {
        counts,
        times,
        last_answer_nanos,
        ..
    } = collector.total;
    let mut lasted = Duration::from_nanos(last_answer_nanos);
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
        histories,
    })
}
