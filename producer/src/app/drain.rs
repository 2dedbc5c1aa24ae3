//! The order in which a producer drains, and the time that each step may take.

use std::time::Duration;

use tokio::time::Instant;
use tonic_health::ServingStatus;

use super::App;
use crate::{config::Stopping, streams::Streams};

/// Most of the drain that waiting for HTTP clients may take: a client that has sent half a request, or does not read
/// its responses, must not cost the subscribers their tail.
const EDGE_GRACE: Duration = Duration::from_millis(2500);

/// How long it waits for a turn of the waiting rooms to end, which takes no millisecond.
const SHAPING_GRACE: Duration = Duration::from_millis(500);

/// The last part of the drain, in which the admin port still answers.
const ADMIN_GRACE: Duration = Duration::from_millis(500);

/// Some subscribers were not sent everything in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not everything was sent within {}; still behind: {}",
    humantime::format_duration(*.within),
    .behind.join(", ")
)]
pub struct DrainTimeout {
    within: Duration,
    behind: Vec<String>,
}

impl App {
    /// Stops in the order in which the data flows: load balancers get time to notice that it is not ready, requests are
    /// finished, what waits for its limits is kept or released, the log is closed, and streams send the rest and a goodbye. Takes no longer than configured.
    ///
    /// # Errors
    /// When a connected subscriber was not sent everything in that time; it has lost the rest.
    pub async fn drain(self) -> Result<(), DrainTimeout> {
        self.draining.cancel();
        self.health.set_not_serving::<Streams>().await;
        // The status for probes that name no service.
        let overall = self
            .health
            .set_service_status("", ServingStatus::NotServing);
        overall.await;
        let Stopping {
            drain_delay: delay,
            drain_timeout: timeout,
        } = *self.runtime_config.stopping.borrow();
        tokio::time::sleep(delay).await;
        let end = Instant::now() + timeout;
        let edge_grace = EDGE_GRACE.min(timeout / 4);
        if !self.edge.drain(Instant::now() + edge_grace).await {
            tracing::info!("cut off HTTP clients that did not finish");
        }
        if let Some(shaping) = &self.shaping {
            self.shapes.drain(Instant::now() + SHAPING_GRACE).await;
            shaping.drain(Instant::now() + timeout / 4).await;
        }
        self.log.close();
        let admin_grace = ADMIN_GRACE.min(timeout / 4);
        let behind = self.drain_streams(end - admin_grace).await;
        let appended = self.log.stats().appended;
        self.admin.drain(end).await;
        if behind.is_empty() {
            tracing::info!(appended, "drained");
            return Ok(());
        }
        Err(DrainTimeout {
            within: timeout,
            behind,
        })
    }

    /// Returns the names of the subscribers whose streams were still open at the deadline.
    async fn drain_streams(&self, deadline: Instant) -> Vec<String> {
        // Read just before the connections are closed, which ends their streams.
        let look = async {
            tokio::time::sleep_until(deadline).await;
            let queues = self.subscribers.snapshot().into_iter();
            queues
                .filter(|queue| queue.connected)
                .map(|queue| queue.name)
                .collect()
        };
        tokio::select! {
            biased;
            behind = look => {
                self.streams.drain(deadline).await;
                behind
            }
            _ = self.streams.drain(deadline + Duration::from_secs(1)) => Vec::new(),
        }
    }
}
