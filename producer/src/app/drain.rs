//! The steps of a drain (graceful shutdown) in order, with their time limits.

use std::{mem, time::Duration};

use anyhow::bail;
use tokio::time::{Instant, timeout_at};

use super::App;
use crate::server;

/// Maximum time to wait for HTTP clients. A client that sends half a request or does not read its responses must not use
/// up the time for the subscribers.
const EDGE_GRACE: Duration = Duration::from_millis(2500);

/// Maximum time to wait for the release task, which needs less than a millisecond.
const RELEASE_GRACE: Duration = Duration::from_millis(500);

/// Time at the end of the drain during which only the admin port is open.
const ADMIN_GRACE: Duration = Duration::from_millis(500);

impl App {
    /// Stops in data-flow order: wait for `--drain-delay`, finish open requests, spool or release queued cookies, and close the
    /// log. All streams then send the rest of the log and a `Goodbye`. Takes no longer than configured.
    ///
    /// # Errors
    /// When a connected subscriber or the archive did not receive all cookies in time; it loses the rest.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.draining.cancel();
        server::set_not_serving(&self.health).await;
        let shutdown = *self.runtime_config.shutdown.borrow();
        tokio::time::sleep(shutdown.drain_delay).await;
        let timeout = shutdown.drain_timeout;
        let end = Instant::now() + timeout;
        let edge_grace = EDGE_GRACE.min(timeout / 4);
        let edge_end = Instant::now() + edge_grace;
        let (is_edge_done, _) = tokio::join!(self.edge.drain(edge_end), self.api.drain(edge_end));
        if !is_edge_done {
            tracing::info!("closed HTTP connections with unfinished requests");
        }
        self.inlet_stage.drain(Instant::now() + RELEASE_GRACE).await;
        self.inlet.drain(Instant::now() + timeout / 4).await;
        self.log.close();
        let admin_grace = ADMIN_GRACE.min(timeout / 4);
        let archiving = mem::take(&mut self.archiving);
        let (mut behind, archived) = tokio::join!(
            self.drain_streams(end - admin_grace),
            timeout_at(end - admin_grace, archiving.join_all())
        );
        if archived.is_err() {
            behind.push("the archive".to_owned());
        }
        let appended = self.log.stats().appended;
        self.services.stage.drain(end).await;
        if behind.is_empty() {
            tracing::info!(appended, "drained");
            return Ok(());
        }
        bail!(
            "drain timed out after {}; these did not receive all cookies: {}",
            humantime::format_duration(timeout),
            behind.join(", ")
        )
    }

    /// Returns the subscribers whose streams were still open at the deadline.
    async fn drain_streams(&self, deadline: Instant) -> Vec<String> {
        // Read before connections are closed, because closing them ends the streams.
        let open_streams = async {
            tokio::time::sleep_until(deadline).await;
            let subscribers = self.subscribers.snapshot().into_iter();
            subscribers
                .filter(|subscriber| subscriber.connected)
                .map(|subscriber| subscriber.name)
                .collect()
        };
        tokio::select! {
            biased;
            behind = open_streams => {
                self.streams.drain(deadline).await;
                behind
            }
            _ = self.streams.drain(deadline + Duration::from_secs(1)) => Vec::new(),
        }
    }
}
