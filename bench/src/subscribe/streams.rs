//! Runs all streams of one process.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use testkit::cpu;
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    args::{Call, SubscribeArgs},
    security,
    stream::{Stream, StreamCounts},
};

/// Outcome of all streams.
#[derive(Debug)]
pub struct SubscribeOutcome {
    /// The options of the run.
    pub args: SubscribeArgs,
    /// Totals of all streams.
    pub total: StreamCounts,
    /// Minimum and maximum of the cookies received by a stream.
    pub received_per_stream: [u64; 2],
    /// CPU time of this process.
    pub cpu: Duration,
}

/// Runs all streams to their end, or until `stop`. Calls `opened` when all streams are open.
///
/// # Errors
/// A stream cannot be opened. The outcome counts later errors.
pub async fn run(
    args: &SubscribeArgs,
    stop: &CancellationToken,
    opened: impl FnOnce(),
) -> Result<SubscribeOutcome> {
    let stop = stop.child_token();
    let streams = args.streams.get();
    let (open_tx, mut open) = mpsc::channel(streams);
    let mut running = JoinSet::new();
    let security = security::load(&args.producer, &args.security)?;
    for number in 1..=streams {
        let name = format!("bench-{}-{number}", std::process::id());
        let stream = Stream::new(args, security.clone(), name);
        running.spawn(stream.run(open_tx.clone(), stop.child_token()));
    }
    drop(open_tx);
    for _ in 0..streams {
        let result = tokio::select! {
            result = open.recv() => result.context("a stream ended before it was open")?,
            () = stop.cancelled() => return Err(anyhow!("interrupted before all streams were open")),
        };
        result.with_context(|| format!("failed to subscribe to {}", args.producer))?;
    }
    opened();

    let cpu_before = cpu::of_this_process();
    let mut timer = std::pin::pin!(sleep(args.duration.unwrap_or(Duration::MAX)));
    let mut counts = Vec::with_capacity(streams);
    loop {
        tokio::select! {
            stream = running.join_next() => match stream {
                Some(ended) => counts.push(ended?),
                None => break,
            },
            () = timer.as_mut(), if !stop.is_cancelled() => stop.cancel(),
        }
    }
    let cpu = cpu::of_this_process().saturating_sub(cpu_before);
    let received = || counts.iter().map(|it| it.received);
    let extremes = [received().min(), received().max()];
    let mut outcome = SubscribeOutcome {
        args: args.clone(),
        total: StreamCounts::default(),
        received_per_stream: extremes.map(Option::unwrap_or_default),
        cpu,
    };
    counts.iter().for_each(|it| outcome.total.add(it));
    Ok(outcome)
}

impl SubscribeOutcome {
    /// Whether the call has sequence numbers, which reveal lost cookies.
    pub(super) fn detects_loss(&self) -> bool {
        self.args.call == Call::Subscribe
    }
}
