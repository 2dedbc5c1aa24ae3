//! A cluster that is driven and observed, settled, stopped and verified: what every scenario with one does.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::drive::{self, LoadResult};
use crate::{
    cluster::{Cluster, ClusterArgs, Node, StoreBackend},
    load::Plan,
    observe::{Observation, Observer},
    verify::{self, SentRequests, Source, StoreCheck, StoreVerdict},
};

/// How often the processes are looked at.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// How often what is waited for is looked at.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// How long nothing may get better while a backlog is waited for: longer than a mongod takes to replay its journal.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a backlog is waited for at all, and when it was interrupted.
const SETTLE_MAX: Duration = Duration::from_secs(600);
const SETTLE_INTERRUPTED_MAX: Duration = Duration::from_secs(30);

/// How often what a scenario does meanwhile gets a turn.
const TICK_INTERVAL: Duration = Duration::from_millis(50);

/// A cluster at work.
pub struct ClusterRun {
    /// The processes.
    pub cluster: Cluster,
    /// What was seen of them so far.
    pub observer: Observer,
    /// When everything had started.
    pub started: Instant,
    /// Why nothing more can be driven: a process has ended by itself, or a load could not begin.
    pub ended: Option<String>,
}

/// A load as it was seen from outside.
pub struct LoadRun {
    /// What the load itself saw.
    pub driven: LoadResult,
    /// Everything before it began.
    pub before: Observation,
    /// Everything after it ended.
    pub after: Observation,
    /// Largest backlog that was seen.
    pub backlog_max: u64,
    /// Why it did not go on to its end.
    pub ended_early: Option<EarlyEnd>,
}

/// Why a load did not go on to its end: what it says of its rate is not to be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EarlyEnd {
    /// Somebody wanted no more.
    Interrupted,
    /// A process ended by itself, or could not be reached.
    ProcessExited,
}

/// How a backlog went away.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Settlement {
    /// How long that took.
    pub seconds: f64,
    /// What was left when it was waited for no longer.
    pub remaining: u64,
}

/// What the stores were found to hold.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verification {
    /// One for each node.
    pub verdicts: Vec<StoreVerdict>,
    /// Stores that could not be held against what was sent, and why.
    pub failed: Vec<String>,
    /// Why there was nothing to verify.
    pub not_verified: Option<String>,
    /// Scrapes of producers and consumers whose ledger balanced.
    pub balanced: u64,
}

/// Whether the request with this number on this connection may have been lost for a node.
pub type NodeLossPredicate<'a> = &'a (dyn Fn(usize, &Source, u64) -> bool + Sync);

impl ClusterRun {
    /// Starts a cluster and waits until every consumer reads from every producer.
    ///
    /// # Errors
    /// When something does not start, or `stop` comes first.
    pub async fn start(args: &ClusterArgs, stop: &CancellationToken) -> Result<Self> {
        eprintln!("starting");
        let started = tokio::select! {
            started = Cluster::start(args) => started,
            () = stop.cancelled() => bail!("stopped before everything had started"),
        };
        let mut cluster = started?;
        let connected = tokio::select! {
            connected = cluster.wait_connected() => connected,
            () = stop.cancelled() => Err(anyhow!("stopped before everything had started")),
        };
        if let Err(error) = connected {
            cluster.remove().await;
            return Err(error);
        }
        let mut running = Self {
            cluster,
            observer: Observer::default(),
            started: Instant::now(),
            ended: None,
        };
        running.observe().await;
        Ok(running)
    }

    /// Looks at everything once.
    pub async fn observe(&mut self) -> Observation {
        let targets = self.cluster.targets();
        self.observer.observe(&targets).await.clone()
    }

    /// Runs a load to its end, looking at everything each second; `injector` gets a turn often. A process that ends by
    /// itself ends it, unless `injector` is there to know better.
    pub async fn drive(
        &mut self,
        plan: Plan,
        stop: &CancellationToken,
        mut injector: Option<&mut dyn Injector>,
    ) -> LoadRun {
        let before = self.observe().await;
        let (began, mut backlog_max) = (Instant::now(), 0);
        let load_stop = stop.child_token();
        let mut load = JoinSet::new();
        load.spawn(drive::drive(plan, load_stop.clone()));
        let mut observations = interval(OBSERVE_INTERVAL);
        let mut ticks = interval(TICK_INTERVAL);
        observations.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        observations.reset();
        let driven = loop {
            let checked = tokio::select! {
                Some(ended) = load.join_next() => break ended.map_err(Into::into).flatten(),
                _ = observations.tick() => {
                    backlog_max = backlog_max.max(self.observe().await.backlog());
                    if injector.is_none() { self.cluster.check() } else { Ok(()) }
                }
                _ = ticks.tick(), if injector.is_some() && self.ended.is_none() => {
                    match &mut injector {
                        Some(injector) => self.tick(*injector, began.elapsed()).await,
                        None => Ok(()),
                    }
                }
            };
            if let Err(error) = checked {
                self.end(&error);
                load_stop.cancel();
            }
        };
        let driven = driven.unwrap_or_else(|error| {
            if !load_stop.is_cancelled() {
                self.end(&error);
            }
            LoadResult::default()
        });
        let after = self.observe().await;
        backlog_max = backlog_max.max(after.backlog());
        let ended_early = match &self.ended {
            Some(_) => Some(EarlyEnd::ProcessExited),
            None => stop.is_cancelled().then_some(EarlyEnd::Interrupted),
        };
        LoadRun {
            driven,
            before,
            after,
            backlog_max,
            ended_early,
        }
    }

    /// Nothing more can be driven; the first reason counts.
    pub fn end(&mut self, why: &anyhow::Error) {
        self.ended.get_or_insert(format!("{why:#}"));
    }

    /// Stops producers and consumers in order; what went wrong, each once, a ledger that did not balance included.
    pub async fn stop(&mut self) -> Vec<String> {
        let stopped = self.cluster.stop().await;
        let ended = self.ended.iter();
        let others = stopped
            .iter()
            .filter(|failure| self.ended.as_ref() != Some(*failure));
        let unbalanced = self.observer.unbalanced();
        ended.chain(others).cloned().chain(unbalanced).collect()
    }

    /// Removes what was made; what could not be removed, and what was seen.
    pub async fn remove(self) -> (Vec<String>, Observer) {
        (self.cluster.remove().await, self.observer)
    }

    /// Gives `injector` its turn.
    ///
    /// # Errors
    /// As [`Injector::turn`].
    pub async fn tick(&mut self, injector: &mut dyn Injector, elapsed: Duration) -> Result<()> {
        match injector.tick(&mut self.cluster, elapsed)? {
            Some(InjectorAction::Observe) => {
                self.observe().await;
                injector.observed();
            }
            Some(InjectorAction::Print(line)) => eprintln!("{line}"),
            None => {}
        }
        Ok(())
    }

    /// Waits until `is_settled`, as long as the backlog shrinks now and then.
    pub async fn settle(
        &mut self,
        stop: &CancellationToken,
        is_settled: impl Fn(&Observation, &Observation) -> bool,
    ) -> Settlement {
        let began = Instant::now();
        let settled = |remaining| Settlement {
            seconds: began.elapsed().as_secs_f64(),
            remaining,
        };
        let (mut best, mut best_at) = (u64::MAX, began);
        let mut last = self.observe().await;
        loop {
            sleep(SETTLE_INTERVAL).await;
            let now = self.observe().await;
            let backlog = now.backlog();
            if let Err(error) = self.cluster.check() {
                self.end(&error);
            }
            if self.ended.is_some() {
                return settled(backlog);
            }
            if is_settled(&last, &now) {
                return settled(0);
            }
            if backlog < best {
                (best, best_at) = (backlog, Instant::now());
            }
            let most = if stop.is_cancelled() {
                SETTLE_INTERRUPTED_MAX
            } else {
                SETTLE_MAX
            };
            if best_at.elapsed() > SETTLE_TIMEOUT || began.elapsed() > most {
                return settled(backlog.max(1));
            }
            last = now;
        }
    }

    /// Holds every store against what was sent; producers and consumers have been stopped. `forgets_duplicates` says of
    /// which nodes the consumers were restarted meanwhile.
    pub async fn verify(
        &mut self,
        sources: Vec<Source>,
        explain: NodeLossPredicate<'_>,
        forgets_duplicates: &(dyn Fn(usize) -> bool + Sync),
        stop: &CancellationToken,
    ) -> Verification {
        // Anyone who has interrupted the load still wants to know; a second Ctrl-C ends everything.
        let stop = if stop.is_cancelled() {
            CancellationToken::new()
        } else {
            stop.clone()
        };
        eprintln!("verifying");
        let mut verification = Verification {
            balanced: self.observer.balanced(),
            ..Verification::default()
        };
        match tokio::task::spawn_blocking(|| SentRequests::new(sources)).await {
            Ok(Ok(sent)) => {
                for (index, node) in self.cluster.nodes.iter_mut().enumerate() {
                    let may_be_lost = |source: &Source, number| explain(index, source, number);
                    let name = node.name.clone();
                    let check =
                        StoreCheck::new(&name, &sent, &may_be_lost, forgets_duplicates(index));
                    let verdict = tokio::select! {
                        verdict = verify_node(node, check) => verdict,
                        () = stop.cancelled() => Err(anyhow!("interrupted")),
                    };
                    match verdict {
                        Ok(Some(verdict)) => verification.verdicts.push(verdict),
                        Ok(None) => {
                            let why = "there is no store, so only counts were compared";
                            verification.not_verified = Some(why.to_owned());
                        }
                        Err(error) => verification.failed.push(format!("{name}: {error:#}")),
                    }
                }
            }
            Ok(Err(error)) => verification.failed.push(format!("{error:#}")),
            Err(error) => verification.failed.push(error.to_string()),
        }
        verification
    }
}

/// `None` when there is no store.
async fn verify_node(node: &mut Node, check: StoreCheck<'_>) -> Result<Option<StoreVerdict>> {
    if let Some(process) = node.backend.process() {
        process.check()?;
    }
    let verdict = match &node.backend {
        StoreBackend::Mongod(mongod) => verify::mongodb(&mongod.uri(), "", check).await,
        StoreBackend::Existing { uri, prefix } => verify::mongodb(uri, prefix, check).await,
        StoreBackend::Embedded(dir) => verify::embedded(dir, check).await,
        StoreBackend::Nothing => return Ok(None),
    };
    verdict.context("cannot be read").map(Some)
}

impl Verification {
    /// None was possible, for this reason.
    #[must_use]
    pub fn failed(why: String) -> Self {
        Self {
            failed: vec![why],
            ..Self::default()
        }
    }
}

/// What a scenario does while a load runs.
pub trait Injector {
    /// Does what is due; a line about it if it did something.
    ///
    /// # Errors
    /// When it cannot, or a process has ended that nobody told to.
    fn tick(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<InjectorAction>>;
    /// Takes note that everything was looked at when it asked for that.
    fn observed(&mut self);
}

/// What a turn came to.
pub enum InjectorAction {
    /// Everything is to be looked at before the next turn: what was counted up to now goes with a process.
    Observe,
    /// Something was done.
    Print(String),
}
