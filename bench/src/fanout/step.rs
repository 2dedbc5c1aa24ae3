//! One step: a fresh producer, its readers, a load, and the end of all three in order.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{
    FanoutArgs, StepOutcome,
    children::{Child, Load, Readers, SlowReaders, start_producer},
    outcome::Measured,
    sampler::{self, Look},
};
use crate::{memory::Memory, producer::Producer, programs::Programs, subscribe::Call};

const READY_PATIENCE: Duration = Duration::from_secs(30);
/// A load ends within its duration, half a second for what is late, and five for answers.
const LOAD_PATIENCE: Duration = Duration::from_secs(15);
/// How long subscribers may take for what they are behind with when the load has ended: a full log, by readers on a
/// busy machine.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(300);
/// Longer than a producer may take to drain.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs one step; everything it started is gone when this has ended or is dropped.
pub(super) async fn run(
    args: &FanoutArgs,
    call: Call,
    subscribers: usize,
    programs: &Programs,
    folder: &Path,
) -> Result<StepOutcome> {
    let mut producer = start_producer(args, programs, folder)?;
    producer.wait_ready(READY_PATIENCE).await?;
    let subscribers = subscribers - args.slow_readers;
    let mut readers = Child::readers(args, call, subscribers, &producer.grpc, folder)?;
    wait_open(&mut readers).await?;
    let mut slow_readers = match args.slow_readers {
        0 => None,
        count => Some(Child::slow_readers(call, count, &producer.grpc, folder)?),
    };
    if let Some(slow_readers) = &mut slow_readers {
        wait_open(slow_readers).await?;
    }

    let before = Look::at(&producer).await?;
    let mut load = Child::load(args, &producer.http, folder)?;
    let mut samples = Vec::new();
    let patience = args.duration + LOAD_PATIENCE;
    tokio::select! {
        ended = load.process.wait(patience) => ended.map(drop),
        // This ends only with an error.
        watched = sampler::watch(&producer, before, &mut samples) => watched,
    }?;
    let load = Load::of(&load.report().await?);
    let slow = match &mut slow_readers {
        None => SlowReaders::default(),
        Some(slow_readers) => {
            slow_readers.process.signal(Signal::INT)?;
            SlowReaders::of(&slow_readers.report().await?)
        }
    };
    let after = caught_up(&producer, subscribers).await?;
    let memory = Memory::of(producer.process.id()).context("the producer is gone")?;

    let status = producer.process.stop(STOP_PATIENCE).await?;
    ensure!(
        status.success(),
        "the producer did not drain ({status}): {}",
        producer.process.last_lines(5)
    );
    let readers = Readers::of(&readers.report().await?);
    Ok(StepOutcome::new(
        call,
        subscribers,
        Measured {
            load,
            readers,
            slow_readers: (args.slow_readers, slow),
            appended: after.appended - before.appended,
            producer_cpu: after.cpu.since(&before.cpu).total().as_secs_f64(),
            seconds: (after.at - before.at).as_secs_f64(),
            memory,
            samples,
        },
    ))
}

async fn wait_open(readers: &mut Child) -> Result<()> {
    let deadline = Instant::now() + READY_PATIENCE;
    while !readers.has_said("subscribed ") {
        readers.process.check()?;
        ensure!(
            Instant::now() < deadline,
            "the streams are not open after {READY_PATIENCE:?}"
        );
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Waits until every subscriber was handed all there is, or told that it will not get it.
async fn caught_up(producer: &Producer, subscribers: usize) -> Result<Look> {
    let subscribers = subscribers as u64;
    let deadline = Instant::now() + CATCH_UP_PATIENCE;
    loop {
        let look = Look::at(producer).await?;
        let missing = (look.appended * subscribers).saturating_sub(look.delivered + look.lost);
        // A stream that has broken gets nothing more: what it missed is then found to be missing.
        if missing == 0 || look.connected < subscribers {
            return Ok(look);
        }
        ensure!(
            Instant::now() < deadline,
            "the subscribers are still {missing} cookies behind after {CATCH_UP_PATIENCE:?}"
        );
        sleep(POLL_INTERVAL).await;
    }
}
