//! What the sink asks the store, again and again until it is done; and what is said of it meanwhile.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::{
    backoff::Backoff,
    health::Health,
    metrics,
    store::{Answer, Store, StoreError},
};

/// How long one attempt may take before the store is reported as failing; the attempt goes on.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Most reasons of one outage that are logged.
const REASONS_MAX: usize = 8;

/// Asks the store, and tells health, metrics and log when it begins and ends to fail.
#[derive(Debug)]
pub(super) struct StoreCaller {
    store: Arc<dyn Store>,
    health: Arc<Health>,
    metrics: metrics::Sink,
    stop: CancellationToken,
    /// Why the store does not work, as far as it was logged; empty while it works.
    reasons: Vec<String>,
}

impl StoreCaller {
    /// Attempts that are given up when `stop` is cancelled.
    pub(super) fn new(
        store: Arc<dyn Store>,
        health: Arc<Health>,
        metrics: metrics::Sink,
        stop: CancellationToken,
    ) -> Self {
        Self {
            store,
            health,
            metrics,
            stop,
            reasons: Vec::new(),
        }
    }

    /// Repeats what the store cannot do now, after growing delays. An attempt that takes longer than [`TIMEOUT`]
    /// is reported.
    ///
    /// # Errors
    /// When the store is broken, or told to stop.
    pub(super) async fn until_done<T>(
        &mut self,
        ask: impl for<'a> Fn(&'a dyn Store) -> Answer<'a, T>,
    ) -> Result<T, Failure> {
        let (store, stop) = (Arc::clone(&self.store), self.stop.clone());
        let mut backoff = Backoff::default();
        loop {
            let answer = self.unless_stopped(ask(&*store)).await?;
            self.note(answer.as_ref().err())?;
            if let Ok(done) = answer {
                return Ok(done);
            }
            tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                () = sleep(backoff.delay()) => {}
            }
        }
    }

    /// Waits patiently, but not when told to stop.
    ///
    /// # Errors
    /// When told to stop.
    pub(super) async fn unless_stopped<T>(
        &mut self,
        asked: impl Future<Output = T> + Unpin,
    ) -> Result<T, Failure> {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => Err(Failure::Stopped),
            answer = self.patiently(asked) => Ok(answer),
        }
    }

    /// Reports the store as failing when it does not answer soon, and as in need of a restart when it seems to hang; and
    /// waits on.
    async fn patiently<T>(&mut self, mut asked: impl Future<Output = T> + Unpin) -> T {
        if let Ok(answer) = timeout(TIMEOUT, &mut asked).await {
            return answer;
        }
        self.is_failing(format!("no answer for {TIMEOUT:?}"));
        if let Some(hang_timeout) = self.store.hang_timeout() {
            if let Ok(answer) = timeout(hang_timeout.saturating_sub(TIMEOUT), &mut asked).await {
                return answer;
            }
            let why = format!(
                "no answer for {hang_timeout:?}: it hangs, and may go on only after a restart"
            );
            tracing::error!(why, "store is not responding, still waiting");
            self.health.store_needs_restart(why);
        }
        asked.await
    }

    fn is_failing(&mut self, why: String) {
        self.metrics.store_up.set(0);
        if self.reasons.len() < REASONS_MAX && !self.reasons.contains(&why) {
            tracing::warn!(why, "store unavailable, retrying");
            self.reasons.push(why.clone());
        }
        self.health.store_fails(why);
    }

    /// Takes note of how an attempt ended.
    ///
    /// # Errors
    /// When none can ever succeed.
    pub(super) fn note(&mut self, error: Option<&StoreError>) -> Result<(), Failure> {
        let Some(error) = error else {
            if !self.reasons.is_empty() {
                tracing::info!("store available again");
            }
            self.reasons.clear();
            self.health.store_works();
            self.metrics.store_up.set(1);
            return Ok(());
        };
        self.metrics.store_errors.inc();
        self.is_failing(error.to_string());
        match error {
            StoreError::Unavailable(_) => Ok(()),
            StoreError::Broken(why) => {
                self.health.store_needs_restart(why.clone());
                Err(Failure::Broken(why.clone()))
            }
        }
    }
}
