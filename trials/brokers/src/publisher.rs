//! Publishes the cookies of a run over several connections.

use std::{future::Future, num::NonZeroU64, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::message::{LANES, Messages, burst};

/// Minimum time between two bursts of a load with a rate.
const PAUSE: Duration = Duration::from_millis(1);

/// The load of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Cookies per message.
    pub(crate) batch: u32,
    /// Cookies per second; `None` publishes as fast as possible.
    pub(crate) rate: Option<NonZeroU64>,
    pub(crate) duration: Duration,
}

/// The result of publishing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// Cookies accepted by the server.
    pub(crate) cookies: u64,
    /// Cookies rejected by the server.
    pub(crate) rejected: u64,
    pub(crate) seconds: f64,
}

/// A connection through which messages are published in order.
pub(crate) trait Publish: Send + 'static {
    /// Passes messages to the client, which may still be sending them on return.
    fn send(&mut self, messages: Vec<Bytes>) -> impl Future<Output = Result<()>> + Send;

    /// Waits until the server has received all messages.
    fn finish(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Publishes over [`LANES`] connections with one task each, so that one task sends while another waits.
pub(crate) async fn publish<P: Publish>(
    load: Load,
    connect: impl AsyncFn() -> Result<P>,
) -> Result<Published> {
    let mut publishers = Vec::with_capacity(LANES);
    for _ in 0..LANES {
        publishers.push(connect().await?);
    }
    let began = Instant::now();
    let mut running = JoinSet::new();
    for (lane, publisher) in (0..).zip(publishers) {
        let messages = Messages::new(load.batch, lane);
        running.spawn(publish_lane(load, began, messages, publisher));
    }
    let mut cookies = 0;
    while let Some(ended) = running.join_next().await {
        cookies += ended??;
    }
    Ok(Published {
        cookies,
        rejected: 0,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Publishes the due messages of a lane until the end of the load; returns the number of cookies.
async fn publish_lane(
    load: Load,
    began: Instant,
    mut messages: Messages,
    mut publisher: impl Publish,
) -> Result<u64> {
    let burst = burst(load.batch);
    let mut sent = 0;
    while began.elapsed() < load.duration {
        match load.due(began.elapsed()).saturating_sub(sent).min(burst) {
            0 => sleep(PAUSE).await,
            count => {
                let made = (0..count).map(|_| messages.make()).collect();
                publisher.send(made).await?;
                sent += count;
            }
        }
    }
    publisher.finish().await?;
    Ok(messages.made())
}

impl Load {
    /// Messages due in each lane after `elapsed`.
    fn due(&self, elapsed: Duration) -> u64 {
        let Some(rate) = self.rate else {
            return u64::MAX;
        };
        let cookies = u128::from(rate.get()) * elapsed.as_nanos() / 1_000_000_000;
        let messages = cookies / (u128::from(self.batch) * LANES as u128);
        u64::try_from(messages).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_due_when_its_last_cookie_is() {
        let due = |batch, millis| {
            let load = Load {
                batch,
                rate: NonZeroU64::new(4_000),
                duration: Duration::MAX,
            };
            load.due(Duration::from_millis(millis))
        };
        assert_eq!(
            [0, 1, 1_000, 2_500].map(|millis| due(1, millis)),
            [0, 1, 1_000, 2_500]
        );
        assert_eq!(
            [99, 100, 199, 1_000].map(|millis| due(100, millis)),
            [0, 1, 1, 10]
        );
    }
}
