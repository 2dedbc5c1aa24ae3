//! Calls to a limiter at a rate: how long they take, beside clients that never read.

use anyhow::{Context, Result};

use super::{
    Pace, ServiceOutcome,
    asked::{Bench, stop_limiter},
    generator::{self, Plan},
    stalled::Stalled,
};
use crate::{cpu::CpuTime, memory::Memory};

/// Starts a limiter, sends calls until their time is over or the run is stopped, and ends it.
pub(super) async fn measure(bench: &Bench<'_>, pace: Pace) -> Result<ServiceOutcome> {
    let args = bench.args;
    let mut limiter = bench.start_limiter("limiter").await?;
    let plan = Plan {
        address: limiter.address.parse()?,
        connections: args.connections.get(),
        pipeline: args.pipeline.get(),
        pace,
        mix: args.mix.clone(),
        counters: args.counters,
        duration: args.duration,
    };
    let stalled = Stalled::start(args.stalled, plan.address);
    let id = limiter.process.id();
    let cpu = || [Some(CpuTime::of_this_process()), CpuTime::of(id)].map(Option::unwrap_or_default);
    let before = cpu();
    let stop = bench.stop.clone();
    let sending = move || generator::run(&plan, &stop);
    let sent = tokio::task::spawn_blocking(sending).await??;
    let [own, of_limiter] = cpu();
    let cpu = [own.since(&before[0]), of_limiter.since(&before[1])];
    let memory = Memory::of(id).context("the limiter is gone")?;
    let stalled = stalled.end().await;
    stop_limiter(&mut limiter.process).await?;
    Ok(ServiceOutcome::new(args, pace, &sent, cpu, memory, stalled))
}
