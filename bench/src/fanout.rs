//! `bench fanout`: what each further subscriber costs the producer.
//!
//! Each step has a producer of its own, fresh, and beside it two processes of this program: one that reads all
//! streams, one that sends the load; and a third where some subscribers are to read slowly. So the system accounts the CPU of each for itself. A step ends in an order in which
//! nothing can be missed: the load ends, the producer is behind with no subscriber any more, it drains, and the
//! readers come to the end of their streams. Then every cookie was read, or declared lost. Slow readers end with the load: nobody
//! waits for them, and only what they do to the others is measured.

mod children;
mod marginal;
mod outcome;
mod report;
mod sampler;
mod step;

use std::{
    collections::HashSet,
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

pub use self::{
    marginal::Marginal,
    outcome::{Outcome, Share, StepOutcome},
    sampler::Sample,
};
use crate::{load::parse_rate, programs::Programs, report::ReportArgs, subscribe::Call};

/// Streams that one reading process can be expected to open: each has a connection.
const SUBSCRIBERS_MAX: usize = 10_000;

/// Longer than any step needs, and far from what the clock cannot count.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Starts producers, each with another number of subscribers, and measures what a subscriber costs.
///
/// Everything runs on this machine, on ports of its own; streams and load in processes of their own. Ctrl-C ends
/// the step that runs, and the finished ones are reported. The exit code is 1 when a request was not accepted, a
/// promise of the wire was broken, a cookie was neither delivered nor declared lost, or a step could not be finished.
#[derive(Debug, Clone, Args)]
pub struct FanoutArgs {
    /// Numbers of subscribers, a step each.
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "1,2,5,10,20,50,100"
    )]
    pub subscribers: Vec<NonZeroUsize>,
    /// So many of the subscribers are slow readers: they read 16 KiB a second, with the small windows of an ordinary client. The
    /// figures of a step are those of the others.
    #[arg(long, value_name = "N", default_value = "0")]
    pub slow_readers: usize,
    /// Requests a second; without it, as many as are answered.
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// The call of the subscribers.
    #[arg(long, value_enum, default_value_t = Calls::Both)]
    pub call: Calls,
    /// How long the load of each step lasts.
    #[arg(short, long, default_value = "5s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Connections of the load.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Most requests without an answer on each connection.
    #[arg(short, long, default_value = "16")]
    pub pipeline: NonZeroUsize,
    /// The producer's bound of its log [default: the producer's].
    #[arg(long, value_name = "BYTES")]
    pub log_bytes: Option<String>,
    /// Decode each cookie, as a consumer does, instead of only walking over it.
    #[arg(long)]
    pub decode: bool,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Which calls are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Calls {
    /// Chunks with sequences.
    Subscribe,
    /// One cookie a message.
    GetCookies,
    /// One after the other.
    Both,
}

impl Calls {
    fn each(self) -> &'static [Call] {
        match self {
            Self::Subscribe => &[Call::Subscribe],
            Self::GetCookies => &[Call::GetCookies],
            Self::Both => &[Call::Subscribe, Call::GetCookies],
        }
    }
}

/// Runs all steps, or those before `stop` or one that fails, which is a fault; `progress` gets a line a step.
///
/// # Errors
/// When the arguments are not valid, or the programs cannot be found or built.
pub async fn run(
    args: &FanoutArgs,
    stop: &CancellationToken,
    mut progress: impl FnMut(&str),
) -> Result<Outcome> {
    args.check()?;
    let programs = tokio::task::spawn_blocking(Programs::find).await?;
    let mut outcome = Outcome::new(args.rate.map(NonZeroU64::get));
    if stop.is_cancelled() {
        // The same Ctrl-C may have ended cargo.
        outcome.interrupted = true;
        return Ok(outcome);
    }
    let programs = programs?;
    let folder = tempfile::tempdir().context("cannot make a folder for the logs")?;
    let count = args.steps().count();
    for (number, (call, subscribers)) in args.steps().enumerate() {
        let folder = folder.path().join(number.to_string());
        std::fs::create_dir(&folder).context("cannot make a folder for the logs")?;
        let running = step::run(args, call, subscribers, &programs, &folder);
        let step = tokio::select! {
            step = running => step,
            () = stop.cancelled() => {
                outcome.interrupted = true;
                break;
            }
        };
        match step {
            Ok(step) => {
                progress(&format!("{} of {count}: {}", number + 1, step.short_line()));
                outcome.steps.push(step);
            }
            // What the steps before found is not lost with it.
            Err(error) => {
                outcome.fail(call, subscribers, &error);
                break;
            }
        }
    }
    outcome.conclude();
    Ok(outcome)
}

impl FanoutArgs {
    fn check(&self) -> Result<()> {
        let mut numbers = HashSet::new();
        for number in &self.subscribers {
            ensure!(
                number.get() <= SUBSCRIBERS_MAX,
                "--subscribers: at most {SUBSCRIBERS_MAX} of one process"
            );
            ensure!(numbers.insert(number), "--subscribers names {number} twice");
        }
        ensure!(!numbers.is_empty(), "--subscribers names no number");
        ensure!(
            numbers
                .iter()
                .all(|number| number.get() > self.slow_readers),
            "--slow-readers: fewer than the subscribers of each step"
        );
        ensure!(
            !self.duration.is_zero() && self.duration <= DURATION_MAX,
            "--duration must be above zero, and a day at most"
        );
        Ok(())
    }

    fn steps(&self) -> impl Iterator<Item = (Call, usize)> {
        let calls = self.call.each().iter();
        calls.flat_map(|call| self.subscribers.iter().map(|count| (*call, count.get())))
    }
}
