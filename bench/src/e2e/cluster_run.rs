//! Runs a cluster: puts load on it, observes it, waits until all accepted cookies are stored, stops it, and verifies the stores.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use testkit::{
    cluster::{Cluster, ClusterArgs, Node, StoreBackend},
    observe::{Observation, Observer},
};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::verification::Verification;
use crate::{
    load::{self, History, LoadOutcome, Plan},
    verify::{self, SentRequests, Source, StoreCheck, StoreVerdict},
};

/// Interval between two observations during a load.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two observations while waiting for the backlog.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum time without a decrease of the backlog: longer than mongod takes to replay its journal.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum wait for the backlog.
const SETTLE_MAX: Duration = Duration::from_secs(600);

/// Interval between two ticks during a load.
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
    /// Result of the load, without the histories.
    pub outcome: LoadOutcome,
    /// Requests of each connection, for verification.
    pub sources: Vec<Source>,
    /// Observation before the load.
    pub before: Observation,
    /// Observation after the load.
    pub after: Observation,
}

/// Result of waiting for a backlog.
#[derive(Debug, Clone, Copy, Default)]
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
        let connected = stop.run_until_cancelled(async {
            let mut cluster = Cluster::start(args).await?;
            cluster.wait_connected().await?;
            anyhow::Ok(cluster)
        });
        let interrupted = || anyhow!("interrupted before the cluster had started");
        let mut run = Self {
            cluster: connected.await.ok_or_else(interrupted)??,
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

    /// Runs a load to its end and observes all processes every second. `tick`, which gets the time since the start of the load, is
    /// called every 50 ms and must check for unexpected exits; its error ends the load. `None` if the load could not start.
    pub async fn drive(
        &mut self,
        plan: Plan,
        stop: &CancellationToken,
        mut tick: impl AsyncFnMut(&mut Self, Duration) -> Result<()>,
    ) -> Option<LoadRun> {
        let before = self.observe().await;
        let began = Instant::now();
        let load_stop = stop.child_token();
        let mut load = JoinSet::new();
        let (load_plan, token) = (plan.clone(), load_stop.clone());
        load.spawn(async move { load::run(&load_plan, &token).await });
        let mut observations = interval(OBSERVE_INTERVAL);
        let mut ticks = interval(TICK_INTERVAL);
        observations.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        observations.reset();
        let outcome = loop {
            tokio::select! {
                Some(ended) = load.join_next() => break ended.map_err(Into::into).flatten(),
                _ = observations.tick() => drop(self.observe().await),
                _ = ticks.tick(), if self.failure.is_none() => {
                    if let Err(error) = tick(self, began.elapsed()).await {
                        self.fail(&error);
                        load_stop.cancel();
                    }
                }
            }
        };
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                if !load_stop.is_cancelled() {
                    self.fail(&error);
                }
                return None;
            }
        };
        let source = |history: History| {
            let index = history.connection() - plan.first_connection;
            Source {
                traffic: plan.traffic.clone(),
                connection: history.connection(),
                producer: usize::try_from(index).unwrap_or(0) % plan.urls.len(),
                requests: Box::new(history),
            }
        };
        let sources = outcome.histories.drain(..).map(source).collect();
        let after = self.observe().await;
        Some(LoadRun {
            outcome,
            sources,
            before,
            after,
        })
    }

    /// Records an error that prevents further loads; only the first one is kept.
    pub fn fail(&mut self, error: &anyhow::Error) {
        self.failure.get_or_insert(format!("{error:#}"));
    }

    /// Stops producers and consumers cleanly. Returns all failures once, including unbalanced ledgers.
    pub async fn stop(&mut self) -> Vec<String> {
        eprintln!("stopping");
        let stopped = self.cluster.stop().await;
        let failure = self.failure.iter();
        let others = stopped
            .iter()
            .filter(|failure| self.failure.as_ref() != Some(*failure));
        let unbalanced = self.observer.unbalanced();
        failure.chain(others).cloned().chain(unbalanced).collect()
    }

    /// Waits until `is_settled` returns true for the previous and the current observation, or until the backlog stops
    /// shrinking.
    pub async fn settle(
        &mut self,
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
            if best_at.elapsed() > SETTLE_TIMEOUT || began.elapsed() > SETTLE_MAX {
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
    ) -> Verification {
        eprintln!("verifying");
        let mut verification = Verification {
            balanced: self.observer.balanced(),
            ..Verification::default()
        };
        let sent = tokio::task::spawn_blocking(|| SentRequests::new(sources)).await;
        let sent = match sent.map_err(Into::into).flatten() {
            Ok(sent) => sent,
            Err(error) => {
                verification.failed.push(format!("{error:#}"));
                return verification;
            }
        };
        for (index, node) in self.cluster.nodes.iter_mut().enumerate() {
            let may_be_lost = |source: &Source, number| explain(index, source, number);
            let name = node.name.clone();
            let check = StoreCheck::new(&name, &sent, &may_be_lost, was_restarted(index));
            match verify_node(node, check).await {
                Ok(verdict) => verification.verdicts.push(verdict),
                Err(error) => verification.failed.push(format!("{name}: {error:#}")),
            }
        }
        verification
    }
}

/// Verifies the store of a node.
async fn verify_node(node: &mut Node, check: StoreCheck<'_>) -> Result<StoreVerdict> {
    if let Some(process) = node.backend.process() {
        process.check()?;
    }
    let verdict = match &node.backend {
        StoreBackend::Mongod(mongod) => verify::mongodb(&mongod.uri(), check).await,
        StoreBackend::Embedded(dir) => verify::embedded(dir, check).await,
    };
    verdict.context("failed to read the store")
}
