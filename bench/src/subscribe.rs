//! `bench subscribe`: many independent readers in one process, each checking that it misses nothing unsaid; and what each further one
//! costs a producer (`--fan-out`).
//!
//! Each stream has a connection, a task and counters of its own; they meet only when it ends. Every chunk is
//! walked cookie by cookie; the clock is read once a chunk.

mod fan_out;
mod report;
mod security;
mod stream;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::stream::Stream;
pub use self::{
    fan_out::{FanOutArgs, run as run_fan_out},
    security::SecurityArgs,
    stream::StreamCounts,
};
use crate::{cpu, report::ReportArgs};

/// Opens named streams from a producer and checks what arrives.
///
/// Without a duration or a count it runs until Ctrl-C; the report comes in any case. The exit code is 1 when a
/// stream broke the producer's promise (a sequence repeated, or missing and in no gap), or did not get the
/// count it was asked for.
#[derive(Debug, Clone, Args)]
pub struct SubscribeArgs {
    /// The producer's gRPC address.
    #[arg(long, default_value = "http://127.0.0.1:7676")]
    pub producer: String,
    /// Number of streams, each with a name and a connection of its own.
    #[arg(short, long, default_value = "1")]
    pub streams: NonZeroUsize,
    /// End after this long.
    #[arg(short, long, value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,
    /// End each stream once it has this many cookies, received or declared lost.
    #[arg(short, long)]
    pub requests: Option<u64>,
    /// The call to use.
    #[arg(long, value_enum, default_value_t = Call::Subscribe)]
    pub call: Call,
    /// Prefix of the streams' names; streams are NAME-1, NAME-2, … [default: bench- and the process id].
    #[arg(long)]
    pub name: Option<String>,
    /// End each stream when the producer ends it, instead of opening it again.
    #[arg(long)]
    pub once: bool,
    /// Read only so many bytes a second on each stream, with the small windows of an ordinary client: a reader that cannot
    /// keep up, and holds up what is sent to it.
    #[arg(long, value_name = "BYTES")]
    pub read_rate: Option<NonZeroU64>,
    /// How it is reached by TLS, and with a token.
    #[command(flatten)]
    pub security: SecurityArgs,
    /// What streams cost a producer.
    #[command(flatten)]
    pub fan_out: FanOutArgs,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// A call of the `CookieStreamer` service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Call {
    /// Chunks with sequences.
    Subscribe,
    /// One cookie a message, no sequences: lost cookies cannot be seen.
    GetCookies,
}

/// What all streams saw.
#[derive(Debug)]
pub struct SubscribeOutcome {
    /// What was asked for.
    pub args: SubscribeArgs,
    /// The sum of all streams.
    pub total: StreamCounts,
    /// Cookies received by the stream that got least and the one that got most.
    pub received_per_stream: [u64; 2],
    /// CPU time of this process.
    pub cpu: Duration,
}

/// Runs all streams to their end, or until `stop`; calls `opened` once all are open.
///
/// # Errors
/// When a stream cannot be opened at the start. Anything later is counted in the outcome.
pub async fn run(
    args: &SubscribeArgs,
    stop: &CancellationToken,
    opened: impl FnOnce(),
) -> Result<SubscribeOutcome> {
    let stop = stop.child_token();
    let prefix = args
        .name
        .clone()
        .unwrap_or_else(|| format!("bench-{}", std::process::id()));
    let streams = args.streams.get();
    let security = args.security.load(&args.producer)?;
    let (open_tx, mut open) = mpsc::channel(streams);
    let mut running = JoinSet::new();
    let began = Instant::now();
    for number in 1..=streams {
        let stream = Stream::new(args, security.clone(), format!("{prefix}-{number}"), began);
        running.spawn(stream.run(open_tx.clone(), stop.child_token()));
    }
    drop(open_tx);
    for _ in 0..streams {
        let result = tokio::select! {
            result = open.recv() => result.context("a stream ended before it was open")?,
            () = stop.cancelled() => return Err(anyhow!("stopped before all streams were open")),
        };
        result.with_context(|| format!("cannot subscribe at {}", args.producer))?;
    }
    opened();

    let cpu_before = cpu::of_this_process();
    let mut timer = std::pin::pin!(sleep(args.duration.unwrap_or(Duration::MAX)));
    let mut tallies = Vec::with_capacity(streams);
    loop {
        tokio::select! {
            stream = running.join_next() => match stream {
                Some(tally) => tallies.push(tally?),
                None => break,
            },
            () = timer.as_mut(), if !stop.is_cancelled() => stop.cancel(),
        }
    }
    let cpu = cpu::of_this_process().saturating_sub(cpu_before);
    let received = || tallies.iter().map(|tally| tally.received);
    let extremes = [received().min(), received().max()];
    let mut outcome = SubscribeOutcome {
        args: args.clone(),
        total: StreamCounts::default(),
        received_per_stream: extremes.map(Option::unwrap_or_default),
        cpu,
    };
    tallies.iter().for_each(|tally| outcome.total.add(tally));
    Ok(outcome)
}

impl SubscribeOutcome {
    /// True when no stream broke the producer's promise, and each got what was asked for.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.total.violations == 0 && !self.has_too_few()
    }

    /// Whether the call has sequences, so that lost cookies are known.
    fn knows_lost(&self) -> bool {
        self.args.call == Call::Subscribe
    }

    /// A stream got less than what was asked for.
    fn has_too_few(&self) -> bool {
        self.args
            .requests
            .is_some_and(|count| self.received_per_stream[0] < count)
    }
}
