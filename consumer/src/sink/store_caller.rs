//! Repeats store operations until they succeed, and reports outages.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::Failure;
use crate::{backoff::Backoff, health::Health, metrics, store::StoreError};

/// Duration of an attempt after which the store is reported as down. The attempt continues.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Like [`TIMEOUT`], before the first response of the store: reports a wrong address soon.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of logged reasons per outage.
const REASONS_MAX: usize = 8;

/// Calls the store, and reports the start and end of outages to health, metrics and log.
#[derive(Debug)]
pub(super) struct StoreCaller {
    hang_timeout: Option<Duration>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: metrics::Sink,
    pub(super) stop: CancellationToken,
    /// Logged reasons of the current outage; empty while the store is up.
    reasons: Vec<String>,
    has_responded: bool,
}

impl StoreCaller {
    /// Cancelling `stop` ends pending calls.
    pub(super) fn new(
        hang_timeout: Option<Duration>,
        health: Arc<Health>,
        metrics: metrics::Sink,
        stop: CancellationToken,
    ) -> Self {
        Self {
            hang_timeout,
            health,
            metrics,
            stop,
            reasons: Vec::new(),
            has_responded: false,
        }
    }

    /// Repeats `call` with backoff until it succeeds. Attempts longer than [`TIMEOUT`] are reported.
    ///
    /// # Errors
    /// When the store failed permanently, or `stop` is cancelled.
    pub(super) async fn retry<'a, T>(
        &mut self,
        call: impl Fn() -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> Result<T, Failure> {
        let stop = self.stop.clone();
        let mut backoff = Backoff::default();
        loop {
            let result = self.unless_stopped(call()).await?;
            self.note(result.as_ref().err())?;
            if let Ok(done) = result {
                return Ok(done);
            }
            tokio::select! {
                () = stop.cancelled() => return Err(Failure::Stopped),
                () = sleep(backoff.delay()) => {}
            }
        }
    }

    /// Waits for `call` without a deadline.
    ///
    /// # Errors
    /// When `stop` is cancelled.
    pub(super) async fn unless_stopped<T>(
        &mut self,
        call: impl Future<Output = T> + Unpin,
    ) -> Result<T, Failure> {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => Err(Failure::Stopped),
            result = self.wait_and_report(call) => Ok(result),
        }
    }

    /// Waits for `call`. Reports the store as down after [`TIMEOUT`], and that it needs a restart after its hang timeout.
    async fn wait_and_report<T>(&mut self, mut call: impl Future<Output = T> + Unpin) -> T {
        let mut time_left = TIMEOUT;
        if !self.has_responded {
            if let Ok(result) = timeout(FIRST_TIMEOUT, &mut call).await {
                return result;
            }
            time_left -= FIRST_TIMEOUT;
            self.report_down(format!(
                "no response for {FIRST_TIMEOUT:?}; check --store, and that the server is running and reachable"
            ));
        }
        if let Ok(result) = timeout(time_left, &mut call).await {
            return result;
        }
        self.report_down(format!("no response for {TIMEOUT:?}"));
        if let Some(hang_timeout) = self.hang_timeout {
            if let Ok(result) = timeout(hang_timeout.saturating_sub(TIMEOUT), &mut call).await {
                return result;
            }
            let why = format!("no response for {hang_timeout:?}; restart the consumer");
            tracing::error!(why, "store is not responding, still waiting");
            self.health.set_store_down(why, true);
        }
        call.await
    }

    fn report_down(&mut self, why: String) {
        if self.reasons.len() < REASONS_MAX && !self.reasons.contains(&why) {
            tracing::warn!(why, "store unavailable, retrying");
            self.reasons.push(why.clone());
        }
        self.health.set_store_down(why, false);
    }

    /// Records the result of an attempt.
    ///
    /// # Errors
    /// When the store failed permanently.
    pub(super) fn note(&mut self, error: Option<&StoreError>) -> Result<(), Failure> {
        let Some(error) = error else {
            self.has_responded = true;
            if !self.reasons.is_empty() {
                tracing::info!("store available again");
            }
            self.reasons.clear();
            self.health.set_store_up();
            return Ok(());
        };
        self.metrics.store_errors.inc();
        self.report_down(error.to_string());
        match error {
            StoreError::Unavailable(_) => Ok(()),
            StoreError::Broken(why) => {
                self.health.set_store_down(why.clone(), true);
                Err(Failure::Broken(why.clone()))
            }
        }
    }
}
