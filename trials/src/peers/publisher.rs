//! What publishes to a system: the cookies of one step, over several connections.

use std::{future::Future, num::NonZeroU64, time::Duration};

use anyhow::Result;
use bench::{cpu::CpuTime, traffic::Traffic};
use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    message::{LANES, Messages, burst},
    peer::Peer,
};

/// Shortest time between two bursts of a load with a rate.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a load with a rate may take beyond its duration to send what is late.
const LATE_PATIENCE: Duration = Duration::from_millis(500);

/// What a publisher is told.
#[derive(Debug, Clone, Args)]
pub struct PublisherArgs {
    /// The peer.
    #[arg(long, value_enum)]
    pub peer: Peer,
    /// Where it takes messages.
    #[arg(long)]
    pub to: String,
    /// Cookies a message.
    #[arg(long)]
    pub batch: u32,
    /// Cookies a second.
    #[arg(long)]
    pub rate: Option<NonZeroU64>,
    /// How long.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Most cookies kept for a subscriber.
    #[arg(long)]
    pub keep: u64,
    /// Seed of the cookies.
    #[arg(long)]
    pub seed: u64,
}

/// What a publisher did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct PublisherLine {
    /// Cookies the peer took.
    pub(super) published: u64,
    /// Cookies it refused.
    pub(super) refused: u64,
    /// For so long.
    pub(super) seconds: f64,
    /// CPU time of this process meanwhile.
    pub(super) cpu_seconds: f64,
}

/// A connection through which messages are published in order.
pub(super) trait Publish: Send + 'static {
    /// Hands messages to the client, which may still be sending when this returns.
    fn send(&mut self, messages: Vec<Bytes>) -> impl Future<Output = Result<()>> + Send;

    /// Waits until the server has everything.
    fn finish(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Publishes over [`LANES`] connections, each with its task, so that one sends while another waits.
pub(super) async fn publish<P: Publish>(
    args: &PublisherArgs,
    connect: impl AsyncFn() -> Result<P>,
    stop: &CancellationToken,
) -> Result<PublisherLine> {
    let mut publishers = Vec::with_capacity(LANES);
    for _ in 0..LANES {
        publishers.push(connect().await?);
    }
    let cpu_before = CpuTime::of_this_process();
    let began = Instant::now();
    let mut running = JoinSet::new();
    for (lane, publisher) in (0..).zip(publishers) {
        let messages = Messages::new(Traffic::new(args.seed, None), args.batch, lane);
        let (due, stop) = (Due::of(args, lane), stop.clone());
        running.spawn(publish_lane(due, began, messages, publisher, stop));
    }
    let mut published = 0;
    while let Some(ended) = running.join_next().await {
        published += ended??;
    }
    let cpu = CpuTime::of_this_process().since(&cpu_before);
    Ok(PublisherLine {
        published,
        refused: 0,
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: cpu.total().as_secs_f64(),
    })
}

/// Publishes what is due in a lane, and gives the number of its cookies.
async fn publish_lane(
    due: Due,
    began: Instant,
    mut messages: Messages,
    mut publisher: impl Publish,
    stop: CancellationToken,
) -> Result<u64> {
    let burst = burst(due.batch);
    let mut sent = 0;
    while !stop.is_cancelled() {
        match due.at(began.elapsed(), sent) {
            Some(0) => sleep(PAUSE).await,
            Some(due) => {
                let count = due.min(burst);
                let made = (0..count).map(|_| messages.make()).collect();
                publisher.send(made).await?;
                sent += count;
            }
            None => break,
        }
    }
    publisher.finish().await?;
    Ok(messages.cookies())
}

/// Which messages of a lane should have left when.
struct Due {
    rate: Option<NonZeroU64>,
    batch: u32,
    duration: Duration,
    lane: u64,
}

impl Due {
    fn of(args: &PublisherArgs, lane: u64) -> Self {
        Self {
            rate: args.rate,
            batch: args.batch,
            duration: args.duration,
            lane,
        }
    }

    /// How many messages should leave now, after `sent`; `None` when it is over.
    fn at(&self, elapsed: Duration, sent: u64) -> Option<u64> {
        let late = elapsed.checked_sub(self.duration);
        let Some(rate) = self.rate else {
            return late.is_none().then_some(u64::MAX);
        };
        let all = due(rate, self.batch, elapsed.min(self.duration));
        // The lanes take turns.
        let mine = (all + LANES as u64 - 1 - self.lane) / LANES as u64;
        match (mine - sent, late) {
            (0, Some(_)) => None,
            (_, Some(late)) if late >= LATE_PATIENCE => None,
            (due, _) => Some(due),
        }
    }
}

/// Messages of `batch` cookies that should have left after `elapsed`: each when its last cookie would have come.
fn due(rate: NonZeroU64, batch: u32, elapsed: Duration) -> u64 {
    let cookies = u128::from(rate.get()) * elapsed.as_nanos() / 1_000_000_000;
    u64::try_from(cookies / u128::from(batch)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_due_when_its_last_cookie_is() {
        let rate = NonZeroU64::new(1_000).unwrap();
        let due = |batch, millis| due(rate, batch, Duration::from_millis(millis));
        assert_eq!(
            [0, 1, 1_000, 2_500].map(|millis| due(1, millis)),
            [0, 1, 1_000, 2_500]
        );
        assert_eq!(
            [99, 100, 199, 1_000].map(|millis| due(100, millis)),
            [0, 1, 1, 10]
        );
    }

    #[test]
    fn lanes_share_a_rate_and_send_nothing_twice() {
        let duration = Duration::from_millis(1_003);
        let rate = NonZeroU64::new(1_000);
        let lanes: [Due; LANES] = std::array::from_fn(|lane| Due {
            rate,
            batch: 1,
            duration,
            lane: lane as u64,
        });
        let at = |lane: &Due, sent| lane.at(duration, sent);
        let dues: Vec<_> = lanes.iter().map(|lane| at(lane, 0)).collect();
        assert_eq!(dues, [Some(251), Some(251), Some(251), Some(250)]);
        assert_eq!([at(&lanes[0], 250), at(&lanes[0], 251)], [Some(1), None]);
        assert_eq!(lanes[0].at(duration + LATE_PATIENCE, 250), None);
        assert_eq!(lanes[3].at(Duration::from_millis(3), 0), Some(0));
    }
}
