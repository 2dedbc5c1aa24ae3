//! The order in which a consumer drains, and the time that each step may take.
//!
//! Drain follows the data: reading stops, the last batch is written with its cursors, then the rest stops; all within
//! one deadline. If it comes near, what is still in the buffer is left out: its cursors are not committed, so the
//! producers send it again.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::App;

/// How long the admin port and maintenance may take to end once all data is safe, and then the store to close.
const SERVICES_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a drain waits for a store that does not work.
const STORE_DOWN_PATIENCE: Duration = Duration::from_secs(2);

/// Of the drain timeout, what is not the pipeline's.
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
        let pipeline_time = pipeline_time(*self.runtime_config.drain_timeout.borrow());
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
        if self.failed.has_happened() {
            let error = self.failed.error();
            self.stop_at_once().await;
            return Err(error);
        }
        if !written {
            let why = self
                .health
                .store_down()
                .unwrap_or_else(|| "it is slow".to_owned());
            tracing::warn!(
                why,
                "the last batch is not stored: it comes again after the next start"
            );
        }
        self.stop_at_once().await;
        tracing::info!(took = ?began.elapsed(), "drained");
        Ok(())
    }

    /// Returns when the store has not worked for [`STORE_DOWN_PATIENCE`] from now on, without a break.
    async fn store_is_down(&self) {
        let mut works_at = Instant::now();
        while works_at.elapsed() < STORE_DOWN_PATIENCE {
            sleep(STORE_DOWN_PATIENCE / 20).await;
            if self.health.store_down().is_none() {
                works_at = Instant::now();
            }
        }
    }

    /// Stops without waiting for the store.
    pub async fn stop_at_once(self) {
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
        if timeout(SERVICES_TIMEOUT, all).await.is_err() {
            tracing::debug!("some work was left to end by itself");
        }
        // Closing the embedded store may block for a moment.
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || drop(store));
        match timeout(SERVICES_TIMEOUT, closed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the store failed to close"),
            Err(_) => tracing::debug!("the store was left to close by itself"),
        }
    }
}

fn pipeline_time(drain_timeout: Duration) -> Duration {
    drain_timeout
        .saturating_sub(CLOSING_TIMEOUT)
        .max(drain_timeout / 2)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn pipeline_gets_all_of_the_drain_timeout_but_what_closing_takes() {
        let seconds = Duration::from_secs;
        assert_eq!(pipeline_time(seconds(10)), seconds(8));
        assert_eq!(pipeline_time(seconds(2)), seconds(1));
        assert_eq!(pipeline_time(seconds(0)), seconds(0));
    }
}
