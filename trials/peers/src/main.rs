//! `peers`: sends cookies of the same sizes through a producer of ours and through what a team would otherwise use.
//!
//! Each run starts the server it measures anew on loopback, with all its state in a temporary directory, publishes from this process
//! (to ours: from `bench load`) and subscribes from another one. CPU time and memory are those of the server's process.
//! Subscribers count what is lost, from sequences in the messages, which also show repeats; `GetCookies` alone has none, so there a
//! repeated cookie could hide a lost one.

mod count;
mod message;
mod nats;
mod ours;
mod peer;
mod publisher;
mod reader;
mod redis;
mod report;
mod run;

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use tempfile::TempDir;

use self::{message::BATCH_MAX, peer::Peer, reader::ReaderArgs, report::Report, run::Run};

/// Subscribers that go on while another one is stopped.
const WITNESSES: usize = 2;

/// Compares the producer with NATS, Redis pub/sub and Redis Streams, as far as they are installed.
///
/// Starts `nats-server` and `redis-server` from the PATH with nothing on disk. The exit code is 1 when the producer lost a cookie
/// without counting it, or when a system that is installed could not be run.
#[derive(Debug, Parser)]
#[command(name = "peers", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    comparison: ComparisonArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The subscribers of one run.
    #[command(hide = true)]
    Reader(ReaderArgs),
}

#[derive(Debug, Clone, Args)]
struct ComparisonArgs {
    /// Subscriber counts, each a step.
    #[arg(long, value_delimiter = ',', default_value = "1,10,50")]
    subscribers: Vec<NonZeroUsize>,
    /// Cookies a message, each a step. The producer makes its own chunks and is measured once for all values above 1.
    #[arg(long, value_delimiter = ',', default_value = "1,500", value_parser = parse_batch)]
    batch: Vec<NonZeroU32>,
    /// How long each step publishes.
    #[arg(short, long, default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Cookies a second; without it, as fast as each system takes them.
    #[arg(short = 'l', long)]
    rate: Option<NonZeroU64>,
    /// The systems to compare; one that is not installed is skipped.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Peer::ALL)]
    peers: Vec<Peer>,
    /// Maximum of cookies kept for a subscriber that is behind, where that can be set: ours, redis-streams.
    #[arg(long, default_value = "1000000")]
    keep: NonZeroU64,
    /// How long one subscriber is stopped under load; 0s leaves that part out.
    #[arg(long, default_value = "15s", value_parser = humantime::parse_duration)]
    stopped_for: Duration,
    /// Cookies a second meanwhile.
    #[arg(long, default_value = "50000")]
    stopped_rate: NonZeroU64,
    /// The directory with the programs `producer` and `bench`.
    #[arg(long, env = launcher::programs::BIN_DIR_VARIABLE, default_value = "target/dist")]
    bin_dir: PathBuf,
    /// Print the figures as one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

fn parse_batch(text: &str) -> Result<NonZeroU32, String> {
    let batch: NonZeroU32 = text.parse().map_err(|error| format!("{error}"))?;
    if batch.get() > BATCH_MAX {
        return Err(format!("a message holds at most {BATCH_MAX} cookies"));
    }
    Ok(batch)
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.command {
        Some(Command::Reader(args)) => reader::read(&args).await.map(|()| true),
        // What runs is killed as it is dropped.
        None => tokio::select! {
            ended = compare(&cli.comparison) => ended,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        },
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs everything and prints it; true when nothing is wrong.
async fn compare(args: &ComparisonArgs) -> Result<bool> {
    let mut report = Report::default();
    let peers = installed(args)?;
    for subscribers in args.subscribers.iter().map(|count| count.get()) {
        for batch in args.batch.iter().map(|batch| batch.get()) {
            for peer in &peers {
                if is_measured(*peer, batch, &args.batch) {
                    let run = Run {
                        peer: *peer,
                        subscribers,
                        batch,
                        rate: args.rate,
                        duration: args.duration,
                        stopped_for: Duration::ZERO,
                        keep: args.keep,
                        bin_dir: &args.bin_dir,
                    };
                    measure(&run, &mut report).await?;
                }
            }
        }
    }
    let batch = args.batch.iter().max().map_or(1, |batch| batch.get());
    for peer in peers.iter().filter(|_| !args.stopped_for.is_zero()) {
        let run = Run {
            peer: *peer,
            subscribers: WITNESSES,
            batch,
            rate: Some(args.stopped_rate),
            duration: args.stopped_for + run::AROUND_STOP,
            stopped_for: args.stopped_for,
            keep: args.keep,
            bin_dir: &args.bin_dir,
        };
        measure(&run, &mut report).await?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.markdown());
    }
    Ok(report.faults.is_empty())
}

async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let (peer, subscribers, batch) = (run.peer, run.subscribers, run.batch);
    eprintln!("{peer}, {subscribers} subscribers, {batch} cookies a message");
    let dir = TempDir::with_prefix("peers-")?;
    match run.measure(dir.path()).await {
        Ok(step) => report.add(step),
        Err(error) => report.faults.push(format!("{peer}: {error:#}")),
    }
    Ok(())
}

/// The systems to compare that are installed.
fn installed(args: &ComparisonArgs) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    for peer in &args.peers {
        match peer.program(&args.bin_dir) {
            Some(_) => peers.push(*peer),
            None if *peer == Peer::Ours => {
                bail!("there is no producer in {}", args.bin_dir.display())
            }
            None => eprintln!(
                "{peer} is skipped: {} is not on the PATH",
                peer.program_name()
            ),
        }
    }
    Ok(peers)
}

/// The producer has no batches to set: of all larger than 1 it is measured with the first.
fn is_measured(peer: Peer, batch: u32, all: &[NonZeroU32]) -> bool {
    let first = all.iter().find(|batch| batch.get() > 1);
    peer != Peer::Ours || batch == 1 || first.is_some_and(|first| first.get() == batch)
}
