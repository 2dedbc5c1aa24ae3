//! Runs a cluster: puts load on it, observes it, waits until all accepted cookies are stored, stops it, and verifies the stores.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    drive::{self, LoadResult},
    verification::Verification,
};
use crate::{
    cluster::{Cluster, ClusterArgs, Node, StoreBackend},
    load::Plan,
    observe::{Observation, Observer},
    verify::{self, SentRequests, Source, StoreCheck, StoreVerdict},
};

/// Interval between two observations during a load.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two observations while waiting for the backlog.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum time without a decrease of the backlog: longer than mongod takes to replay its journal.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum wait for the backlog, in general and after an interrupt.
const SETTLE_MAX: Duration = Duration::from_secs(600);
const SETTLE_INTERRUPTED_MAX: Duration = Duration::from_secs(30);

/// Interval between two ticks of an injector.
const TICK_INTERVAL: Duration = Duration::from_millis(50);

/// A running cluster with its observations.
pub struct ClusterRun {
    /// The cluster.
    pub cluster: Cluster,
    /// All observations so far.
    pub observer: Observer,
    /// Time at which the cluster was connected.
    pub started: Instant,
    /// First error that prevents further loads: an unexpected exit, or a load that could not start.
    pub failure: Option<String>,
}

/// A load, with the observations before and after it.
pub struct LoadRun {
    /// Result of the load.
    pub result: LoadResult,
    /// Requests of each connection, for verification.
    pub sources: Vec<Source>,
    /// Observation before the load.
    pub before: Observation,
    /// Observation after the load.
    pub after: Observation,
    /// Maximum backlog observed.
    pub backlog_max: u64,
    /// Why the load ended early, if it did.
    pub ended_early: Option<EarlyEnd>,
}

/// Why a load ended early. Its measurements are not reliable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyEnd {
    /// Interrupted by the user.
    Interrupted,
    /// A process exited unexpectedly, or was unreachable.
    ProcessExited,
}

/// Result of waiting for a backlog.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Settlement {
    /// Duration of the wait.
    pub seconds: f64,
    /// Cookies that were not stored before the timeout.
    pub remaining: u64,
}

/// Whether a node, given by its index, may have lost a request, given by its connection and number.
pub type NodeLossPredicate<'a> = &'a (dyn Fn(usize, &Source, u64) -> bool + Sync);

impl ClusterRun {
    /// Starts a cluster and waits until every consumer reads from every producer.
    ///
    /// # Errors
    /// A process does not start, or `stop` is cancelled first.
    pub async fn start(args: &ClusterArgs, stop: &CancellationToken) -> Result<Self> {
        eprintln!("starting");
        let interrupted = || anyhow!("interrupted before the cluster had started");
        let started = stop.run_until_cancelled(Cluster::start(args)).await;
        let mut cluster = started.ok_or_else(interrupted)??;
        let connected = stop.run_until_cancelled(cluster.wait_connected()).await;
        if let Err(error) = connected.ok_or_else(interrupted).flatten() {
            cluster.remove().await;
            return Err(error);
        }
        let mut run = Self {
            cluster,
            observer: Observer::default(),
            started: Instant::now(),
            failure: None,
        };
        run.observe().await;
        Ok(run)
    }

    /// Observes all processes once.
    pub async fn observe(&mut self) -> Observation {
        let targets = self.cluster.targets();
        self.observer.observe(&targets).await.clone()
    }

    /// Runs a load to its end and observes all processes every second. An unexpected exit of a process ends the load. An
    /// `injector` must check for exits itself.
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
        let result = loop {
            let checked = tokio::select! {
                Some(ended) = load.join_next() => break ended.map_err(Into::into).flatten(),
                _ = observations.tick() => {
                    backlog_max = backlog_max.max(self.observe().await.backlog());
                    if injector.is_none() { self.cluster.check() } else { Ok(()) }
                }
                _ = ticks.tick(), if injector.is_some() && self.failure.is_none() => {
                    match &mut injector {
                        Some(injector) => self.tick(*injector, began.elapsed()).await,
                        None => Ok(()),
                    }
                }
            };
            if let Err(error) = checked {
                self.fail(&error);
                load_stop.cancel();
            }
        };
        let (result, sources) = result.unwrap_or_else(|error| {
            if !load_stop.is_cancelled() {
                self.fail(&error);
            }
            Default::default()
        });
        let after = self.observe().await;
        backlog_max = backlog_max.max(after.backlog());
        let ended_early = match &self.failure {
            Some(_) => Some(EarlyEnd::ProcessExited),
            None => stop.is_cancelled().then_some(EarlyEnd::Interrupted),
        };
        LoadRun {
            result,
            sources,
            before,
            after,
            backlog_max,
            ended_early,
        }
    }

    /// Records an error that prevents further loads; only the first one is kept.
    pub fn fail(&mut self, error: &anyhow::Error) {
        self.failure.get_or_insert(format!("{error:#}"));
    }

    /// Stops producers and consumers cleanly. Returns all failures once, including unbalanced ledgers.
    pub async fn stop(&mut self) -> Vec<String> {
        let stopped = self.cluster.stop().await;
        let failure = self.failure.iter();
        let others = stopped
            .iter()
            .filter(|failure| self.failure.as_ref() != Some(*failure));
        let unbalanced = self.observer.unbalanced();
        failure.chain(others).cloned().chain(unbalanced).collect()
    }

    /// Removes the cluster. Returns removal errors and the observations.
    pub async fn remove(self) -> (Vec<String>, Observer) {
        (self.cluster.remove().await, self.observer)
    }

    /// Lets `injector` act once.
    ///
    /// # Errors
    /// As [`Injector::tick`].
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

    /// Waits until `is_settled` returns true for the previous and the current observation, or until the backlog stops
    /// shrinking.
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
                self.fail(&error);
            }
            if self.failure.is_some() {
                return settled(backlog);
            }
            if is_settled(&last, &now) {
                return settled(0);
            }
            if backlog < best {
                (best, best_at) = (backlog, Instant::now());
            }
            let timeout = if stop.is_cancelled() {
                SETTLE_INTERRUPTED_MAX
            } else {
                SETTLE_MAX
            };
            if best_at.elapsed() > SETTLE_TIMEOUT || began.elapsed() > timeout {
                return settled(backlog.max(1));
            }
            last = now;
        }
    }

    /// Verifies every store; producers and consumers must be stopped. `was_restarted`: whether the consumer of a node
    /// was restarted.
    pub async fn verify(
        &mut self,
        sources: Vec<Source>,
        explain: NodeLossPredicate<'_>,
        was_restarted: &(dyn Fn(usize) -> bool + Sync),
        stop: &CancellationToken,
    ) -> Verification {
        // An interrupted load is still verified; a second Ctrl-C ends the program.
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
                    let check = StoreCheck::new(&name, &sent, &may_be_lost, was_restarted(index));
                    let verdict = tokio::select! {
                        verdict = verify_node(node, check) => verdict,
                        () = stop.cancelled() => Err(anyhow!("interrupted")),
                    };
                    match verdict {
                        Ok(Some(verdict)) => verification.verdicts.push(verdict),
                        Ok(None) => {
                            let reason = "without a store, only counts were compared";
                            verification.not_verified = Some(reason.to_owned());
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

/// Verifies the store of a node; `None` without a store.
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
    verdict.context("failed to read the store").map(Some)
}

/// Actions on the cluster during a load, such as injected faults.
pub trait Injector {
    /// Performs due actions.
    ///
    /// # Errors
    /// An action failed, or a process exited unexpectedly.
    fn tick(&mut self, cluster: &mut Cluster, elapsed: Duration) -> Result<Option<InjectorAction>>;
    /// Called after an observation that [`InjectorAction::Observe`] requested.
    fn observed(&mut self);
}

/// Result of a tick.
pub enum InjectorAction {
    /// Requests an observation before the next tick, because the counters of a process are about to be lost.
    Observe,
    /// Reports an action.
    Print(String),
}
