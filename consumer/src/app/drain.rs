//! The order in which a consumer drains, and the time that each step may take.
//!
//! Drain follows the data: reading stops, the last batch is written with its cursors, then the rest stops; all within
//! one deadline. If it comes near, what is still in the buffer is left out: its cursors are not committed, so the
//! producers send it again.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::App;

/// How long a drain waits for a store that does not work.
const STORE_DOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Of the drain timeout, what is not the pipeline's: one half for the admin port and maintenance to end, the other for the
/// store to close.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

impl App {
    /// Stops reading, writes what was received, commits the cursors, stops; never longer than the drain timeout.
    ///
    /// Of that time the pipeline gets all but two seconds (half, if that is less). After half of its time it
    /// leaves out what is still in the buffer. A store that does not work is waited for no longer than
    /// two seconds.
    ///
    /// A batch that could not be stored is not an error: its cursors stand where the store stands, so it comes again after
    /// the next start, as far as producers still have it.
    ///
    /// # Errors
    /// When a stage failed.
    pub async fn drain(self) -> anyhow::Result<()> {
        let began = Instant::now();
        let drain_timeout = *self.runtime_config.drain_timeout.borrow();
        let closing_time = CLOSING_TIMEOUT.min(drain_timeout / 2);
        let pipeline_time = drain_timeout - closing_time;
        self.stop_reading.cancel();
        self.pipeline.close();
        let writing = async {
            let half = began + pipeline_time / 2;
            if timeout_at(half, self.pipeline.wait()).await.is_err() {
                self.fast_drain.cancel();
            }
            timeout_at(began + pipeline_time, self.pipeline.wait()).await
        };
        let written = tokio::select! {
            biased;
            written = writing => written.is_ok(),
            () = self.store_is_down() => false,
        };
        if let Some(why) = self.failed.get() {
            let error = anyhow::anyhow!("{why}");
            self.stop_within(closing_time).await;
            return Err(error);
        }
        if !written {
            let why = self
                .health
                .store_down()
                .unwrap_or_else(|| "it is slow".to_owned());
            tracing::warn!(
                why,
                "last batch not stored; it will be redelivered after the next start"
            );
        }
        self.stop_within(closing_time).await;
        tracing::info!(took = ?began.elapsed(), "drained");
        Ok(())
    }

    /// Returns when the store has not worked for [`STORE_DOWN_TIMEOUT`] from now on, without a break.
    async fn store_is_down(&self) {
        let mut works_at = Instant::now();
        while works_at.elapsed() < STORE_DOWN_TIMEOUT {
            sleep(STORE_DOWN_TIMEOUT / 20).await;
            if self.health.store_down().is_none() {
                works_at = Instant::now();
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
        self.stop_services.cancel();
        self.pipeline.close();
        self.services.close();
        let all = async {
            self.pipeline.wait().await;
            self.services.wait().await;
        };
        if timeout(closing_time / 2, all).await.is_err() {
            tracing::debug!("some work was left to end by itself");
        }
        // Closing the embedded store may block for a moment.
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || drop(store));
        match timeout(closing_time / 2, closed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the store failed to close"),
            Err(_) => tracing::debug!("the store was left to close by itself"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use runtime::metrics::Registry;

    use super::*;
    use crate::config::Config;

    fn config(store: &str, drain_timeout: &str) -> Config {
        let arguments = [
            "consumer",
            "--admin=127.0.0.1:0",
            "--producer=http://127.0.0.1:1",
        ];
        let arguments = arguments.into_iter().map(str::to_owned);
        let more = [
            format!("--store={store}"),
            format!("--drain-timeout={drain_timeout}"),
        ];
        Config::load(arguments.chain(more).map(Into::into)).unwrap()
    }

    #[tokio::test]
    async fn drains_at_once_when_there_is_nothing_to_do() {
        let app = App::start(config("none", "10s"), Registry::new())
            .await
            .unwrap();
        let began = Instant::now();
        app.drain().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn drain_takes_no_longer_than_its_timeout_however_short() {
        for drain_timeout in ["0s", "100ms", "1s", "3s", "4s", "10s"] {
            let config = config("none", drain_timeout);
            let longest = config.process.drain_timeout;
            let app = App::start(config, Registry::new()).await.unwrap();
            // Neither ends by itself.
            app.pipeline.spawn(pending::<()>());
            app.services.spawn(pending::<()>());
            let began = Instant::now();
            app.drain().await.unwrap();
            // Timers are exact to a millisecond.
            let took = began.elapsed().saturating_sub(Duration::from_millis(5));
            assert!(took <= longest, "{took:?} of {drain_timeout}");
        }
    }
}
