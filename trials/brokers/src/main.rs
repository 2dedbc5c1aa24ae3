//! `brokers`: compares the producer with NATS and Redis, using cookies of the same sizes.
//!
//! Each run starts a new server on loopback with its state in a temporary directory. The `brokers` process publishes (for
//! the producer, it runs `bench load`), and another process subscribes. CPU time and memory are those of the server process.
//! Subscribers detect lost and repeated cookies by the sequence numbers in the messages. `GetCookies` sends no sequence numbers,
//! so a repeated cookie can hide a lost one.

mod broker;
mod cookiesync;
mod count;
mod message;
mod nats;
mod publisher;
mod reader;
mod redis;
mod report;
mod run;
mod server;
mod subscriber;

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand};
use tempfile::TempDir;

use self::{
    broker::Broker, message::BATCH_MAX, publisher::Load, reader::ReaderArgs, report::Report,
    run::Run,
};

/// Number of running subscribers while another subscriber is stopped.
const RUNNING_SUBSCRIBERS: usize = 2;

/// Compare the producer with NATS, Redis pub/sub and Redis Streams.
///
/// Starts `nats-server` and `redis-server` from the PATH without persistence. The exit code is 1 if the producer lost a cookie
/// without counting it, or if a run failed.
#[derive(Debug, Parser)]
#[command(name = "brokers", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    comparison: ComparisonArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the subscribers of one run.
    #[command(hide = true)]
    Reader(ReaderArgs),
}

#[derive(Debug, Clone, Args)]
struct ComparisonArgs {
    /// Numbers of subscribers; each number is one step.
    #[arg(long, value_delimiter = ',', default_value = "1,10,50")]
    subscribers: Vec<NonZeroUsize>,
    /// Cookies per message; each number is one step. The producer builds its own chunks, so all values above 1 are one step for it.
    #[arg(long, value_delimiter = ',', default_value = "1,500", value_parser = parse_batch)]
    batch: Vec<NonZeroU32>,
    /// Duration of publishing per step.
    #[arg(short, long, default_value = "5s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Cookies per second [default: as fast as each system accepts them].
    #[arg(short = 'l', long)]
    rate: Option<NonZeroU64>,
    /// Systems to compare. Systems that are not installed are skipped.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Broker::ALL)]
    brokers: Vec<Broker>,
    /// Maximum number of cookies kept for a lagging subscriber (cookiesync and redis-streams only).
    #[arg(long, default_value = "1000000")]
    keep: NonZeroU64,
    /// Time for which one subscriber is stopped under load; 0s skips these runs.
    #[arg(long, default_value = "15s", value_parser = humantime::parse_duration)]
    stopped_for: Duration,
    /// Cookies per second in the runs with a stopped subscriber.
    #[arg(long, default_value = "50000")]
    stopped_rate: NonZeroU64,
    /// Directory with the programs `producer` and `bench`.
    #[arg(long, env = launcher::programs::BIN_DIR_VARIABLE, default_value = "target/dist")]
    bin_dir: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

impl ComparisonArgs {
    fn run(
        &self,
        broker: Broker,
        subscribers: usize,
        load: Load,
        stopped_for: Duration,
    ) -> Run<'_> {
        Run {
            broker,
            subscribers,
            load,
            stopped_for,
            keep: self.keep,
            bin_dir: &self.bin_dir,
        }
    }
}

fn parse_batch(text: &str) -> Result<NonZeroU32, String> {
    let batch: NonZeroU32 = text.parse().map_err(|error| format!("{error}"))?;
    if batch.get() > BATCH_MAX {
        return Err(format!("a message has up to {BATCH_MAX} cookies"));
    }
    Ok(batch)
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.command {
        Some(Command::Reader(args)) => reader::read(&args).await.map(|()| true),
        // Dropping the future kills the started processes.
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

/// Runs all steps and prints the report; true if all checks passed.
async fn compare(args: &ComparisonArgs) -> Result<bool> {
    let mut report = Report::default();
    let brokers = installed(args)?;
    for subscribers in args.subscribers.iter().map(|count| count.get()) {
        for batch in args.batch.iter().map(|batch| batch.get()) {
            for broker in &brokers {
                if is_measured(*broker, batch, &args.batch) {
                    let load = Load {
                        batch,
                        rate: args.rate,
                        duration: args.duration,
                    };
                    let run = args.run(*broker, subscribers, load, Duration::ZERO);
                    measure(&run, &mut report).await?;
                }
            }
        }
    }
    let batch = args.batch.iter().max().map_or(1, |batch| batch.get());
    for broker in brokers.iter().filter(|_| !args.stopped_for.is_zero()) {
        let load = Load {
            batch,
            rate: Some(args.stopped_rate),
            duration: args.stopped_for + run::AROUND_STOP,
        };
        let run = args.run(*broker, RUNNING_SUBSCRIBERS, load, args.stopped_for);
        measure(&run, &mut report).await?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", report.markdown());
    }
    Ok(report.failures.is_empty())
}

async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let (broker, subscribers, batch) = (run.broker, run.subscribers, run.load.batch);
    eprintln!("{broker}, {subscribers} subscribers, {batch} cookies per message");
    let dir = TempDir::with_prefix("brokers-")?;
    match run.measure(dir.path()).await {
        Ok(step) => report.add(step),
        Err(error) => report.failures.push(format!("{broker}: {error:#}")),
    }
    Ok(())
}

/// The requested brokers that are installed.
fn installed(args: &ComparisonArgs) -> Result<Vec<Broker>> {
    let mut brokers = Vec::new();
    for broker in &args.brokers {
        match broker.program(&args.bin_dir) {
            Some(_) => brokers.push(*broker),
            None if *broker == Broker::Cookiesync => {
                bail!("no producer in {}; set --bin-dir", args.bin_dir.display())
            }
            None => eprintln!("skipped {broker}: no {} on the PATH", broker.program_name()),
        }
    }
    Ok(brokers)
}

/// Whether a batch size is measured. The producer has no batch size, so only the first value above 1 is measured.
fn is_measured(broker: Broker, batch: u32, all: &[NonZeroU32]) -> bool {
    let first = all.iter().find(|batch| batch.get() > 1);
    broker != Broker::Cookiesync || batch == 1 || first.is_some_and(|first| first.get() == batch)
}
