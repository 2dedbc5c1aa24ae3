//! `trials peers`: the same cookies through a producer of ours and through what a team would otherwise use.
//!
//! Each step starts the server it measures anew, with all its state in a folder that is removed afterwards, one process
//! that publishes and one whose tasks subscribe. CPU time and memory are those of the server's process, as the
//! system accounts them. What is lost is counted by subscribers, not asked of the server: from sequences in the messages, which
//! tell what came again; without them in ours at 1 a message, where a cookie that came twice could hide one that
//! did not come.
//!
//! The clients of other systems are in builds with the feature `peers` alone.

#![cfg_attr(
    not(feature = "peers"),
    allow(dead_code, reason = "what only the clients of others use")
)]

mod broker;
mod child;
mod found;
mod message;
#[cfg(feature = "peers")]
mod others;
#[cfg(not(feature = "peers"))]
#[path = "peers/no_others.rs"]
mod others;
mod ours;
mod outcome;
mod peer;
mod publisher;
mod reader;
mod report;
mod roles;
mod scene;
mod seen;
mod step;
mod stopped;

use std::{
    collections::BTreeSet,
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use bench::{
    load::parse_rate,
    report::{ReportArgs, rate},
};
use clap::Args;
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{found::Found, scene::Scene};
pub use self::{
    outcome::{Outcome, Participant, Step, Stopped},
    peer::Peer,
    publisher::PublisherArgs,
    reader::ReaderArgs,
    roles::{publish, read},
};

/// The largest message: NATS takes 1 MiB by default, and this many cookies have at most 68 bytes each.
const BATCH_MAX: u32 = 10_000;

/// The longest time that a flag takes: far more than a comparison needs.
const TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Compares ours with NATS, Redis pub/sub, Redis Streams and RabbitMQ, as far as they are installed.
///
/// Their clients are in builds with `--features trials/peers`; others measure ours alone.
///
/// It starts `nats-server`, `redis-server` and `rabbitmq-server` from the PATH on loopback ports of its own, with
/// nothing on disk, and ends them. The exit code is 1 when ours lost a cookie without counting it as lost to the bound
/// of a queue, or when a peer that is installed could not be run.
#[derive(Debug, Clone, Args)]
pub struct PeersArgs {
    /// Subscriber counts, each a step.
    #[arg(long, value_delimiter = ',', default_value = "1,10,50")]
    pub subscribers: Vec<NonZeroUsize>,
    /// Cookies a message, each a step: 1, and what a chunk of ours holds at 50 000 cookies a second. Ours makes its
    /// chunks by itself, and is measured once for all that are more than 1.
    #[arg(long, value_delimiter = ',', default_value = "1,500")]
    pub batch: Vec<NonZeroU32>,
    /// How long each step publishes.
    #[arg(short, long, default_value = "5s", value_parser = parse_time)]
    pub duration: Duration,
    /// Cookies a second; without it, as fast as each system takes them.
    #[arg(short = 'l', long, value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,
    /// The systems to compare; one that is not installed is skipped.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Peer::ALL)]
    pub peers: Vec<Peer>,
    /// Most cookies kept for a subscriber that is behind, where that can be set: ours, redis-streams, rabbitmq.
    #[arg(long, default_value = "1000000")]
    pub keep: NonZeroU64,
    /// How long one subscriber is stopped under load; 0s leaves that part out.
    #[arg(long, default_value = "15s", value_parser = parse_time)]
    pub stopped_for: Duration,
    /// Cookies a second meanwhile.
    #[arg(long, default_value = "50000", value_parser = parse_rate)]
    pub stopped_rate: NonZeroU64,
    /// Seed of the cookies [default: random].
    #[arg(long)]
    pub seed: Option<u64>,
    /// The report.
    #[command(flatten)]
    pub report: ReportArgs,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time > TIME_MAX {
        return Err("it is longer than a day".to_owned());
    }
    Ok(time)
}

/// Every value once, by size.
fn sorted<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Runs everything, or until `stop`.
///
/// # Errors
/// When an argument makes no sense or our own program cannot be built. A peer that cannot be
/// run is a fault in the outcome.
pub async fn run(
    args: &PeersArgs,
    stop: &CancellationToken,
    mut tell: impl FnMut(&str),
) -> Result<Outcome> {
    for batch in &args.batch {
        ensure!(
            batch.get() <= BATCH_MAX,
            "--batch {batch} is too large: at most {BATCH_MAX} fit into a message everywhere"
        );
    }
    ensure!(!args.duration.is_zero(), "--duration is zero");
    let mut comparison = Comparison::new(args)?;
    let found = find(args, &mut comparison.outcome).await;
    // The same Ctrl-C may have ended cargo.
    let found = if stop.is_cancelled() {
        Vec::new()
    } else {
        found?
    };
    let began = Instant::now();
    comparison.steps(&found, stop, &mut tell).await;
    comparison.stopped(&found, stop, &mut tell).await;
    let mut outcome = comparison.outcome;
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome.interrupted = stop.is_cancelled();
    Ok(outcome)
}

/// Looks for the programs of all peers.
async fn find(args: &PeersArgs, outcome: &mut Outcome) -> Result<Vec<(Peer, Found)>> {
    let mut all = Vec::new();
    for peer in sorted(args.peers.iter().copied()) {
        let found = tokio::task::spawn_blocking(move || Found::of(peer)).await??;
        outcome.peers.push(Participant {
            peer,
            version: found
                .as_ref()
                .map(|found| found.version.clone())
                .unwrap_or_default(),
            skipped: found.as_ref().err().cloned(),
        });
        all.extend(found.ok().map(|found| (peer, found)));
    }
    Ok(all)
}

struct Comparison<'a> {
    args: &'a PeersArgs,
    folder: TempDir,
    scenes: u32,
    outcome: Outcome,
}

impl<'a> Comparison<'a> {
    fn new(args: &'a PeersArgs) -> Result<Self> {
        let outcome = Outcome {
            subscribers: sorted(args.subscribers.iter().map(|count| count.get())),
            batches: sorted(args.batch.iter().map(|count| count.get())),
            rate: args.rate.map(NonZeroU64::get),
            step_seconds: args.duration.as_secs_f64(),
            keep: args.keep.get(),
            seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
            seconds: 0.0,
            interrupted: false,
            peers: Vec::new(),
            steps: Vec::new(),
            stopped: Vec::new(),
            faults: Vec::new(),
        };
        let folder = TempDir::with_prefix("trials-peers-").context("no folder for the servers")?;
        Ok(Self {
            args,
            folder,
            scenes: 0,
            outcome,
        })
    }

    /// Every subscriber count and batching, the systems one after the other at each, so that what a machine does
    /// meanwhile meets all of them.
    async fn steps(
        &mut self,
        found: &[(Peer, Found)],
        stop: &CancellationToken,
        tell: &mut impl FnMut(&str),
    ) {
        for subscribers in self.outcome.subscribers.clone() {
            let batches = self.outcome.batches.clone();
            for batch in &batches {
                for (peer, program) in found {
                    if !peer.batches(&batches).contains(batch) {
                        continue;
                    }
                    if stop.is_cancelled() {
                        return;
                    }
                    let scene = self.scene(*peer, program, *batch, stop);
                    let (rate, duration) = (self.args.rate, self.args.duration);
                    let measured = step::measure(&scene, subscribers, rate, duration).await;
                    remove(&scene.folder);
                    match measured {
                        Ok(step) => self.measured(step, tell),
                        Err(_) if stop.is_cancelled() => return,
                        Err(error) => self.failed(*peer, &error, tell),
                    }
                }
            }
        }
    }

    fn measured(&mut self, step: Step, tell: &mut impl FnMut(&str)) {
        tell(&format!(
            "{} subscribers, {}, {}: {}, lost {}",
            step.subscribers,
            step.packing(),
            step.peer.name(),
            rate(step.deliveries_per_second),
            step.lost_share()
        ));
        let mut peers = self.outcome.peers.iter_mut();
        let participant = peers.find(|participant| participant.peer == step.peer);
        if let (Some(participant), Some(said)) = (participant, &step.said_version) {
            participant.version.clone_from(said);
        }
        self.outcome.check_step(&step);
        self.outcome.steps.push(step);
    }

    /// One stopped subscriber at each system, with the largest messages.
    async fn stopped(
        &mut self,
        found: &[(Peer, Found)],
        stop: &CancellationToken,
        tell: &mut impl FnMut(&str),
    ) {
        let batch = self.outcome.batches.iter().copied().max().unwrap_or(1);
        if self.args.stopped_for.is_zero() {
            return;
        }
        for (peer, program) in found {
            if stop.is_cancelled() {
                return;
            }
            let scene = self.scene(*peer, program, batch, stop);
            let (rate, stopped_for) = (self.args.stopped_rate, self.args.stopped_for);
            let observed = stopped::observe(&scene, rate, stopped_for).await;
            remove(&scene.folder);
            match observed {
                Ok(stopped) => {
                    let (name, verdict) = (peer.name(), stopped.verdict());
                    tell(&format!("one stopped, {name}: it {verdict}"));
                    self.outcome.check_stopped(&stopped);
                    self.outcome.stopped.push(stopped);
                }
                Err(_) if stop.is_cancelled() => return,
                Err(error) => self.failed(*peer, &error, tell),
            }
        }
    }

    fn failed(&mut self, peer: Peer, error: &anyhow::Error, tell: &mut impl FnMut(&str)) {
        let fault = format!("{}: {error:#}", peer.name());
        tell(&fault);
        self.outcome.faults.push(fault);
    }

    fn scene<'b>(
        &mut self,
        peer: Peer,
        found: &'b Found,
        batch: u32,
        stop: &'b CancellationToken,
    ) -> Scene<'b> {
        self.scenes += 1;
        Scene {
            peer,
            found,
            folder: self.folder.path().join(self.scenes.to_string()),
            batch,
            keep: self.args.keep.get(),
            seed: self.outcome.seed,
            stop,
        }
    }
}

/// Removes what a server left; what cannot be removed now goes with the folder above it.
fn remove(folder: &Path) {
    std::fs::remove_dir_all(folder).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_at_most_a_day() {
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_time("24h"), Ok(TIME_MAX));
        assert!(parse_time("86401s").is_err());
        assert!(parse_time("500000000000y").is_err());
    }
}
