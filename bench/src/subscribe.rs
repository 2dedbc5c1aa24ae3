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
use proto::v1::StartPosition;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::stream::{Stream, Tally};
pub use self::{
    fan_out::{FanOutArgs, run as run_fan_out},
    security::SecurityArgs,
};
use crate::{
    cpu::CpuTime,
    report::{Percentiles, ReportArgs, micros_histogram},
};

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
    /// Decode each cookie, as a consumer does, instead of only walking over it.
    #[arg(long)]
    pub decode: bool,
    /// The call to use.
    #[arg(long, value_enum, default_value_t = Call::Subscribe)]
    pub call: Call,
    /// Prefix of the streams' names; streams are NAME-1, NAME-2, … [default: bench- and the process id].
    #[arg(long)]
    pub name: Option<String>,
    /// Where a stream begins whose name the producer does not know.
    #[arg(long, value_enum, default_value_t = Start::Newest)]
    pub start: Start,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    /// Chunks with sequences.
    Subscribe,
    /// One cookie a message, no sequences: lost cookies cannot be seen.
    GetCookies,
}

impl Call {
    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Subscribe => "subscribe",
            Self::GetCookies => "get-cookies",
        }
    }
}

/// Where a stream begins whose name the producer does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Start {
    /// With what arrives from now on.
    Newest,
    /// With the oldest the producer holds.
    Oldest,
}

impl From<Start> for StartPosition {
    fn from(start: Start) -> Self {
        match start {
            Start::Newest => Self::Newest,
            Start::Oldest => Self::Oldest,
        }
    }
}

/// What all streams saw.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The producer's gRPC address.
    pub producer: String,
    /// Number of streams.
    pub streams: usize,
    /// Cookies that each stream was to get.
    pub asked_of_each: Option<u64>,
    /// From the first cookie to the last, over all streams.
    pub seconds: f64,
    /// Cookies received, over all streams.
    pub received: u64,
    /// Cookies declared missing by gaps; `None` for a call without sequences.
    pub lost: Option<u64>,
    /// Gaps told.
    pub gaps: u64,
    /// Broken promises: sequences out of order, counts that do not agree, messages that cannot be read.
    pub violations: u64,
    /// The first of them, in words.
    pub first_violation: Option<String>,
    /// Bytes of all messages.
    pub bytes: u64,
    /// How often a stream was ended by an error.
    pub broken: u64,
    /// The first of these errors.
    pub first_broken: Option<String>,
    /// Streams opened again after they ended.
    pub reconnects: u64,
    /// Streams that met a new epoch of the producer; what its old epoch still held is unknown.
    pub new_epochs: u64,
    /// Streams that were ended in an orderly way by a draining producer.
    pub goodbyes: u64,
    /// Cookies received in each second since they began to open, over all streams.
    pub received_by_second: Vec<u64>,
    /// `received` by the stream that got least and the one that got most.
    pub received_per_stream: Extremes,
    /// `lost` by the stream that lost least and the one that lost most.
    pub lost_per_stream: Option<Extremes>,
    /// From the edge's acceptance of a chunk's first cookie to its arrival here, weighted by cookies.
    pub delivery_micros: Option<Percentiles>,
    /// CPU time of this process.
    pub cpu: CpuTime,
}

/// Smallest and largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extremes {
    /// Smallest.
    pub min: u64,
    /// Largest.
    pub max: u64,
}

impl Extremes {
    fn of(values: impl Iterator<Item = u64> + Clone) -> Self {
        Self {
            min: values.clone().min().unwrap_or(0),
            max: values.max().unwrap_or(0),
        }
    }
}

/// Runs all streams to their end, or until `stop`; calls `opened` once all are open.
///
/// # Errors
/// When a stream cannot be opened at the start. Anything later is counted in the outcome.
pub async fn run(
    args: &SubscribeArgs,
    stop: &CancellationToken,
    opened: impl FnOnce(),
) -> Result<Outcome> {
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

    let cpu_before = CpuTime::of_this_process();
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
    let cpu = CpuTime::of_this_process().since(&cpu_before);
    Ok(summarize(args, &tallies, cpu))
}

fn summarize(args: &SubscribeArgs, tallies: &[Tally], cpu: CpuTime) -> Outcome {
    let sum = |field: fn(&Tally) -> u64| tallies.iter().map(field).sum::<u64>();
    let mut delivery = micros_histogram();
    for tally in tallies {
        delivery
            .add(&tally.delivery_micros)
            .expect("the histogram grows to any value");
    }
    let first = tallies.iter().filter_map(|tally| tally.first_at).min();
    let last = tallies.iter().filter_map(|tally| tally.last_at).max();
    let seconds = first
        .zip(last)
        .map_or(Duration::ZERO, |(first, last): (Instant, Instant)| {
            last - first
        })
        .as_secs_f64();
    let knows_lost = args.call == Call::Subscribe;
    Outcome {
        producer: args.producer.clone(),
        streams: args.streams.get(),
        asked_of_each: args.requests,
        seconds,
        received: sum(|tally| tally.received),
        lost: knows_lost.then(|| sum(|tally| tally.lost)),
        gaps: sum(|tally| tally.gaps),
        violations: sum(|tally| tally.violations),
        first_violation: tallies
            .iter()
            .find_map(|tally| tally.first_violation.clone()),
        bytes: sum(|tally| tally.bytes),
        broken: sum(|tally| tally.broken),
        first_broken: tallies.iter().find_map(|tally| tally.first_broken.clone()),
        reconnects: sum(|tally| tally.reconnects),
        new_epochs: sum(|tally| tally.new_epochs),
        goodbyes: sum(|tally| tally.goodbyes),
        received_by_second: by_second(tallies),
        received_per_stream: Extremes::of(tallies.iter().map(|tally| tally.received)),
        lost_per_stream: knows_lost.then(|| Extremes::of(tallies.iter().map(|tally| tally.lost))),
        delivery_micros: Percentiles::of(&delivery),
        cpu,
    }
}

fn by_second(tallies: &[Tally]) -> Vec<u64> {
    let seconds = tallies.iter().map(|tally| tally.by_second.len()).max();
    let mut sums = vec![0; seconds.unwrap_or(0)];
    for tally in tallies {
        for (sum, count) in sums.iter_mut().zip(&tally.by_second) {
            *sum += count;
        }
    }
    sums
}

impl Outcome {
    /// True when no stream broke the producer's promise, and each got what was asked for.
    #[must_use]
    pub fn is_faultless(&self) -> bool {
        self.violations == 0 && !self.has_too_few()
    }

    /// A stream got less than what was asked for.
    fn has_too_few(&self) -> bool {
        self.asked_of_each
            .is_some_and(|count| self.received_per_stream.min < count)
    }
}
