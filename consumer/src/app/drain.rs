//! Order and deadlines of a drain, the graceful shutdown of a consumer.
//!
//! A drain follows the data flow: reading stops, the last batch is written with its cursors, then the other tasks stop.
//! Halfway through the maximum drain time, the consumer skips the cookies still in the buffer. It does not commit their
//! cursors, so producers send them again.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::App;

/// Maximum time that a drain waits for a store that is down.
const STORE_DOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time reserved after the end of the data path: half for stopping the admin port and maintenance, half for closing the
/// store.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

impl App {
    /// Stops reading, writes the received cookies, commits their cursors and stops, all within the drain timeout.
    ///
    /// The data path gets the drain timeout minus two seconds, but at least half of the timeout. After half of its time it
    /// skips the rest of the buffer. It waits up to two seconds for a store that is down.
    ///
    /// A batch that could not be stored is not an error: after the next start the consumer resumes from the cursors in the
    /// store, and producers that still have these cookies send them again.
    ///
    /// # Errors
    /// When a stage failed.
    pub async fn drain(self) -> anyhow::Result<()> {
        let began = Instant::now();
        let drain_timeout = *self.runtime_config.drain_timeout.borrow();
        let closing_time = CLOSING_TIMEOUT.min(drain_timeout / 2);
        let writing_time = drain_timeout - closing_time;
        self.stop_reading.cancel();
        self.data_path.close();
        let writing = async {
            let half = began + writing_time / 2;
            if timeout_at(half, self.data_path.wait()).await.is_err() {
                self.fast_drain.cancel();
            }
            timeout_at(began + writing_time, self.data_path.wait()).await
        };
        let written = tokio::select! {
            biased;
            written = writing => written.is_ok(),
            () = self.store_is_down() => false,
        };
        if let Some(why) = self.monitor.failed.get() {
            let error = anyhow::anyhow!("{why}");
            self.stop_within(closing_time).await;
            return Err(error);
        }
        if !written {
            let why = self
                .health
                .store_down()
                .unwrap_or_else(|| "the store is too slow".to_owned());
            tracing::warn!(
                why,
                "last batch not stored; it will be redelivered after the next start"
            );
        }
        self.stop_within(closing_time).await;
        tracing::info!(took = ?began.elapsed(), "drained");
        Ok(())
    }

    /// Returns when the store has been down for [`STORE_DOWN_TIMEOUT`] without interruption, counted from now.
    async fn store_is_down(&self) {
        let mut last_up = Instant::now();
        while last_up.elapsed() < STORE_DOWN_TIMEOUT {
            sleep(STORE_DOWN_TIMEOUT / 20).await;
            if self.health.store_down().is_none() {
                last_up = Instant::now();
            }
        }
    }

    /// Stops without waiting for the store.
    pub async fn stop_at_once(self) {
        self.stop_within(CLOSING_TIMEOUT).await;
    }

    async fn stop_within(self, closing_time: Duration) {
        self.stop_reading.cancel();
        self.fast_drain.cancel();
        self.stop_writing.cancel();
        self.services.stage.stop.cancel();
        self.data_path.close();
        self.services.stage.tasks.close();
        let all = async {
            self.data_path.wait().await;
            self.services.stage.tasks.wait().await;
        };
        if timeout(closing_time / 2, all).await.is_err() {
            tracing::debug!("tasks did not end in time; no longer waiting for them");
        }
        // Closing the embedded store may block for a moment.
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || drop(store));
        match timeout(closing_time / 2, closed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "failed to close the store"),
            Err(_) => tracing::debug!("store did not close in time; no longer waiting for it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use runtime::metrics::Registry;
    use tempfile::TempDir;

    use super::*;
    use crate::config::Config;

    fn config(dir: &TempDir, drain_timeout: &str) -> Config {
        let arguments = [
            "consumer",
            "--admin=127.0.0.1:0",
            "--producer=http://127.0.0.1:1",
        ];
        let arguments = arguments.into_iter().map(str::to_owned);
        let more = [
            format!("--store=embedded:{}", dir.path().display()),
            format!("--drain-timeout={drain_timeout}"),
        ];
        Config::load(arguments.chain(more).map(Into::into)).unwrap()
    }

    #[tokio::test]
    async fn idle_consumer_drains_immediately() {
        let dir = TempDir::new().unwrap();
        let app = App::start(config(&dir, "10s"), Registry::new())
            .await
            .unwrap();
        let began = Instant::now();
        app.drain().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn drain_ends_within_its_timeout() {
        for drain_timeout in ["0s", "100ms", "1s", "3s", "4s", "10s"] {
            // A directory each, because the previous store may still be closing.
            let dir = TempDir::new().unwrap();
            let config = config(&dir, drain_timeout);
            let max = config.args.process.drain_timeout;
            let app = App::start(config, Registry::new()).await.unwrap();
            // Tasks that never end.
            app.data_path.spawn(pending::<()>());
            app.services.stage.tasks.spawn(pending::<()>());
            let began = Instant::now();
            app.drain().await.unwrap();
            // Timers have a resolution of a millisecond.
            let took = began.elapsed().saturating_sub(Duration::from_millis(5));
            assert!(took <= max, "{took:?} of {drain_timeout}");
        }
    }
}
