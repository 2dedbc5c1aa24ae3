//! `bench limits`: what a decision costs, and how long it takes: in process, over Redis, and over the network from `limiter serve`.
//!
//! Each way to decide has its own fresh servers, and is asked as fast as it answers for as long as the others; so the system accounts the CPU of
//! each part for itself. All ways decide under the same limit, over the same number of counters drawn at random, and every decision lets the call go
//! at once: other ones are faults.
//!
//! With a rate there is one way: calls to a limiter over HTTP, which leave when they are due whether or not answers come.

mod answer;
mod asked;
mod calls;
mod connection;
mod generator;
mod in_process;
mod outcome;
mod remote;
mod report;
mod service;
mod stalled;
mod tally;
mod way;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tokio_util::sync::CancellationToken;

use self::asked::Bench;
pub use self::{
    calls::{Call, Mix},
    generator::Pace,
    outcome::{CallOutcome, Latency, Outcome, ServiceOutcome, StalledOutcome, WayOutcome},
    way::Way,
};
use crate::{
    load::parse_time,
    programs::{find, installed},
    redis,
    report::ReportArgs,
};

/// Of the limiter, from one address (`--connections-per-address`).
const CONNECTIONS_MAX: usize = 2048;

/// Calls under way, over all connections.
const UNDER_WAY_MAX: usize = 1 << 20;

const REDIS: &str = "redis-server";

/// Measures what decisions on limits cost and how long they take.
///
/// One way after the other decides as fast as it can, over random counters of one limit that lets every call go: the library in process
/// (local), the governor crate in process (governor), a share of the limit on lease from Redis (lease), a script in Redis for each decision
/// (exact), a fixed window in Redis as people write it (window), and `limiter serve` over HTTP/1.1. With --rate, a limiter gets a mix of
/// calls over HTTP as an open loop instead. All servers are started on this machine, on ports of their own. Ctrl-C ends the run early, with
/// its report. The exit code is 1 when an answer was wrong or missing, when a call was not let go, or when calls that were due had not left.
#[derive(Debug, Clone, Args)]
pub struct LimitsArgs {
    /// Ways to decide, one after the other [default: all, without those that need Redis where there is none].
    #[arg(long, value_enum, value_name = "WAY,…", value_delimiter = ',')]
    pub ways: Vec<Way>,
    /// Counters; each decision is on one of them, as likely as any other.
    #[arg(long, value_name = "COUNT", default_value = "100000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub counters: u64,
    /// How long each way is measured; before that it decides for a fifth of this, a second at most, which counts for nothing. With
    /// --rate, how long calls are sent.
    #[arg(short, long, default_value = "5s", value_parser = parse_time)]
    pub duration: Duration,
    /// Connections to a limiter.
    #[arg(short, long, default_value = "32")]
    pub connections: NonZeroUsize,
    /// Most calls without an answer on each of them. Redis gets as many as all of them at once, over one connection. A rate in numbers takes as many as it needs.
    #[arg(short, long, default_value = "1")]
    pub pipeline: NonZeroUsize,
    /// Instead of comparing ways, send calls to a limiter over HTTP, so many a second over all connections. They leave when they are due
    /// whether or not answers come, and latency counts from the time when a call was due. `max` is as fast as answers come.
    #[arg(
        short = 'l',
        long,
        value_name = "RATE|max",
        conflicts_with_all = ["ways", "redis"]
    )]
    pub rate: Option<Pace>,
    /// Which calls, each with its weight: delay, increment, reserve.
    #[arg(
        long,
        value_name = "CALL=WEIGHT,…",
        requires = "rate",
        default_value = "delay=2,increment=1"
    )]
    pub mix: Mix,
    /// Clients beside these that send calls as fast as they are taken, and never read an answer.
    #[arg(long, value_name = "COUNT", requires = "rate", default_value = "0")]
    pub stalled: usize,
    /// The Redis or Valkey server to start [default: redis-server on the PATH].
    #[arg(long, value_name = "PROGRAM")]
    pub redis: Option<PathBuf>,
    /// Where the report goes.
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Measures each way, or the limiter at a rate, until all is measured or `stop`; `progress` gets a line a way.
///
/// # Errors
/// When the arguments are not valid, a program is missing, or with a rate the limiter does not start or cannot be reached.
pub async fn run(
    args: &LimitsArgs,
    stop: &CancellationToken,
    mut progress: impl FnMut(&str),
) -> Result<Outcome> {
    args.check()?;
    let folder = tempfile::tempdir().context("cannot make a folder for the servers")?;
    let mut outcome = Outcome::new(args);
    let (ways, redis) = args.chosen(&mut outcome)?;
    outcome.redis_version = redis.as_deref().and_then(redis::version);
    let limiter = if args.rate.is_some() || ways.iter().any(|way| way.needs_limiter()) {
        let [limiter] = tokio::task::spawn_blocking(|| find(["limiter"])).await??;
        Some(limiter)
    } else {
        None
    };
    let bench = Bench {
        args,
        limiter: limiter.as_deref(),
        redis: redis.as_deref(),
        folder: folder.path(),
        stop,
    };
    if let Some(pace) = args.rate {
        // The same Ctrl-C may have ended cargo.
        if !stop.is_cancelled() {
            outcome.service = Some(service::measure(&bench, pace).await?);
        }
    }
    for way in ways {
        if stop.is_cancelled() {
            break;
        }
        match asked::measure(way, &bench).await {
            Ok(Some(measured)) => {
                progress(&measured.line());
                outcome.ways.push(measured);
            }
            Ok(None) => break,
            // What the others take is not lost with it.
            Err(error) => {
                let fault = format!("{} could not be measured: {error:#}", way.name());
                outcome.faults.push(fault);
            }
        }
    }
    outcome.interrupted = stop.is_cancelled();
    outcome.find_faults();
    Ok(outcome)
}

impl LimitsArgs {
    fn check(&self) -> Result<()> {
        let connections = self.connections.get() + self.stalled;
        ensure!(
            connections <= CONNECTIONS_MAX,
            "--connections and --stalled: at most {CONNECTIONS_MAX} together, which a limiter takes from one address"
        );
        ensure!(
            self.connections.get().saturating_mul(self.pipeline.get()) <= UNDER_WAY_MAX,
            "--pipeline: at most {UNDER_WAY_MAX} over all connections"
        );
        for (at, way) in self.ways.iter().enumerate() {
            ensure!(
                !self.ways[..at].contains(way),
                "--ways names {} twice",
                way.name()
            );
        }
        Ok(())
    }

    /// The ways, and the Redis that some of them need. Those that are left out are noted in the outcome.
    fn chosen(&self, outcome: &mut Outcome) -> Result<(Vec<Way>, Option<PathBuf>)> {
        if self.rate.is_some() {
            return Ok((Vec::new(), None));
        }
        let mut ways = self.ways.clone();
        if ways.is_empty() {
            ways = Way::ALL.to_vec();
        }
        if !ways.iter().any(|way| way.needs_redis()) {
            return Ok((ways, None));
        }
        let redis = match &self.redis {
            Some(named) if named.components().count() > 1 => {
                Some(named.clone()).filter(|it| it.is_file())
            }
            Some(named) => installed(&named.to_string_lossy()),
            None => installed(REDIS),
        };
        if redis.is_none() {
            let what = self.redis.as_deref().unwrap_or(Path::new(REDIS));
            ensure!(
                self.redis.is_none() && self.ways.is_empty(),
                "there is no program {}: install Redis or Valkey, or name its server with --redis",
                what.display()
            );
            let (left_out, rest) = ways.into_iter().partition(|way| way.needs_redis());
            outcome.left_out = left_out;
            ways = rest;
        }
        Ok((ways, redis))
    }
}
