//! `bench load`: sends sync requests to an edge, which is the HTTP port of a producer, and checks every response.
//!
//! Each thread runs its connections on its own runtime and shares nothing with other threads. With a rate, the load is
//! an open loop: requests are sent at their intended times whether or not responses arrive. Latency is measured from
//! those times, so that a stalled server cannot hide it.
//!
//! Path of a request: `plan` assigns a task to each connection, and `schedule` sets the send times. With `--hostile`,
//! `hostile` replaces the requests; in [`lookup`](crate::lookup), `lookups` does. `session` and `connection` send the
//! request when `pacer` says that it is due, and check its response. `recorder` counts the results of each thread
//! (`threads`). `outcome` and `report` present the results.

mod args;
mod connection;
mod history;
mod hostile;
mod lookups;
mod outcome;
mod pacer;
mod plan;
mod recorder;
mod report;
mod request;
mod response;
mod schedule;
mod session;
mod threads;

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use testkit::cpu;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub use self::{
    args::{LoadArgs, TrafficArgs},
    history::History,
    lookups::{LookupMix, Lookups},
    outcome::LoadOutcome,
    plan::Plan,
    recorder::RequestCounts,
};
use self::{hostile::HostileMix, recorder::Recorder};

/// How long a load with a rate may send late requests after its end.
const LATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a load to its end, or until `stop`.
///
/// # Errors
/// The address cannot be resolved, or a connection cannot be opened. The outcome counts later errors.
pub async fn run(plan: &Plan, stop: &CancellationToken) -> Result<LoadOutcome> {
    let ending = stop.child_token();
    let streams = tokio::select! {
        streams = threads::open(plan) => streams?,
        () = stop.cancelled() => Vec::new(),
    };
    let cpu_before = cpu::of_this_process();
    let started = Instant::now();
    let mut running = threads::spawn(plan, streams, started, &ending);
    let deadline = match plan.duration {
        Some(end) if plan.rate.is_some() => end + LATE_TIMEOUT,
        end => end.unwrap_or(Duration::MAX),
    };
    let mut timer = std::pin::pin!(sleep(deadline));
    let (mut total, mut histories) = (Recorder::new(started), Vec::new());
    loop {
        tokio::select! {
            thread = running.join_next() => match thread {
                Some(ended) => {
                    let (recorder, of_thread) = ended??;
                    total.add(&recorder);
                    histories.extend(of_thread);
                }
                None => break,
            },
            () = timer.as_mut(), if !ending.is_cancelled() => ending.cancel(),
        }
    }
    histories.sort_by_key(History::connection);
    let hostile = match plan.hostile {
        true => HostileMix::new().counts(&histories),
        false => BTreeMap::new(),
    };
    let counts = total.counts;
    let mut lasted = Duration::from_nanos(total.last_response_nanos);
    if counts.unanswered + counts.unsent > 0 {
        let elapsed = started.elapsed();
        lasted = lasted.max(plan.last_due().map_or(elapsed, |due| due.min(elapsed)));
    }
    Ok(LoadOutcome {
        plan: plan.clone(),
        seconds: lasted.as_secs_f64(),
        interrupted: stop.is_cancelled(),
        counts,
        latency_micros: total.latency.percentiles(),
        generator_delay_micros: total.generator_delay.percentiles(),
        cpu: cpu::of_this_process().saturating_sub(cpu_before),
        hostile,
        histories,
    })
}
