//! Decisions that others make, asked for by many tasks at once: scripts in Redis.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use fastrand::Rng;
use limits_sharing::exact::{Ask, Exact, Outcome, Question, Rule};
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    calls::{LIMIT, RATE},
    tally::Tally,
};

/// The window of the baseline, in seconds.
const WINDOW: u64 = 60;

/// Asks for one decision after the other.
pub(super) trait Decide: Send + 'static {
    /// Asks whether a call of a counter may go at once.
    ///
    /// # Errors
    /// When it may not, or nobody says; with the reason.
    fn decide(&mut self, counter: u64) -> impl Future<Output = Result<(), String>> + Send;
}

/// Each asks for so long, or until `stop`.
pub(super) async fn ask<D: Decide>(
    deciders: impl IntoIterator<Item = D>,
    counters: u64,
    length: Duration,
    stop: &CancellationToken,
) -> Result<Tally> {
    let mut asking = JoinSet::new();
    let began = Instant::now();
    for mut decider in deciders {
        let stop = stop.clone();
        asking.spawn(async move {
            let mut random = Rng::new();
            let mut tally = Tally::default();
            let mut before = Instant::now();
            while before - began < length && !stop.is_cancelled() {
                let decided = decider.decide(random.u64(..counters)).await;
                let after = Instant::now();
                tally.took(after - before);
                tally.decided(after - began, 1);
                if let Err(why) = decided {
                    tally.wrong(1, || why);
                }
                before = after;
            }
            tally
        });
    }
    let mut all = Tally::default();
    while let Some(tally) = asking.join_next().await {
        all.add(tally?);
    }
    Ok(all)
}

/// A script that decides on the server.
#[derive(Clone)]
pub(super) struct ByScript {
    exact: Arc<Exact>,
    name: Arc<str>,
    rule: Rule,
}

impl ByScript {
    pub(super) fn new(exact: Arc<Exact>, rule: Rule) -> Self {
        let name = Arc::from(LIMIT);
        Self { exact, name, rule }
    }
}

impl Decide for ByScript {
    async fn decide(&mut self, counter: u64) -> Result<(), String> {
        let ask = Ask {
            name: Arc::clone(&self.name),
            rule: self.rule,
            key: counter.to_string().into(),
            requests: 1,
        };
        let question = Question::Reserve {
            horizon: Duration::ZERO,
        };
        let answer = self.exact.ask(&[ask], question, Duration::ZERO).await;
        match answer {
            Ok(answer) if answer.outcome == Outcome::Now => Ok(()),
            Ok(answer) => Err(format!("{answer:?}")),
            Err(lost) => Err(lost.to_string()),
        }
    }
}

/// A counter for each window, as it is written everywhere: INCR and EXPIRE in one pipeline.
#[derive(Clone)]
pub(super) struct ByWindow(pub(super) MultiplexedConnection);

impl Decide for ByWindow {
    async fn decide(&mut self, counter: u64) -> Result<(), String> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let window = since_epoch.unwrap_or_default().as_secs() / WINDOW;
        let key = format!("{LIMIT}:{counter}:{window}");
        let mut pipeline = redis::pipe();
        pipeline.cmd("INCR").arg(&key);
        pipeline.cmd("EXPIRE").arg(&key).arg(2 * WINDOW).ignore();
        let (count,): (u64,) = pipeline
            .query_async(&mut self.0)
            .await
            .map_err(|error| error.to_string())?;
        if count <= RATE * WINDOW {
            Ok(())
        } else {
            Err(format!("{count} calls in a window"))
        }
    }
}
