//! `bench peers-publisher`: publishes the cookies of one step from a process of its own.

use std::{num::NonZeroU64, time::Duration};

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{
    message::{COOKIE_BYTES_MAX, Messages},
    nats, ours,
    peer::Peer,
    rabbitmq, redis_pubsub, redis_streams,
};
use crate::{cpu::CpuTime, traffic::Traffic};

/// What is given to a client at once: enough to fill its writes, little enough to end in time.
const BURST_BYTES: usize = 64 * 1024;

/// Most messages given to a client at once.
const BURST_MESSAGES: usize = 512;

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
pub(super) trait Publish {
    /// Hands messages to the client, which may still be sending when this returns.
    async fn send(&mut self, messages: Vec<Bytes>) -> Result<()>;

    /// Waits until the server has everything.
    async fn finish(&mut self) -> Result<()>;
}

/// Publishes until the time is over, or `stop`, and prints one JSON object with what it did.
///
/// # Errors
/// When the peer cannot be reached or breaks off.
pub async fn run(args: &PublisherArgs, stop: &CancellationToken) -> Result<()> {
    let PublisherArgs { to, batch, .. } = args;
    let line = match args.peer {
        Peer::Ours => ours::publish(args, stop).await?,
        Peer::Nats => publish(args, nats::Publisher::connect(to).await?, stop).await?,
        Peer::RedisPubsub => publish(args, redis_pubsub::publisher(to).await?, stop).await?,
        Peer::RedisStreams => {
            let publisher = redis_streams::publisher(to, args.keep, *batch).await?;
            publish(args, publisher, stop).await?
        }
        Peer::Rabbitmq => publish(args, rabbitmq::Publisher::connect(to).await?, stop).await?,
    };
    println!("{}", serde_json::to_string(&line)?);
    Ok(())
}

async fn publish(
    args: &PublisherArgs,
    mut publisher: impl Publish,
    stop: &CancellationToken,
) -> Result<PublisherLine> {
    let mut messages = Messages::new(Traffic::new(args.seed, None), args.batch);
    let burst = BURST_BYTES / (args.batch as usize * COOKIE_BYTES_MAX);
    let burst = burst.clamp(1, BURST_MESSAGES) as u64;
    let cpu_before = CpuTime::of_this_process();
    let began = Instant::now();
    while !stop.is_cancelled() {
        let elapsed = began.elapsed();
        let is_over = elapsed >= args.duration;
        let due = match args.rate {
            None if is_over => 0,
            None => burst,
            Some(_) if elapsed >= args.duration + LATE_PATIENCE => 0,
            Some(rate) => {
                let sent = messages.cookies() / u64::from(args.batch);
                due(rate, args.batch, elapsed.min(args.duration)) - sent
            }
        };
        if due > 0 {
            let made = (0..due.min(burst)).map(|_| messages.make()).collect();
            publisher.send(made).await?;
        } else if is_over {
            break;
        } else {
            sleep(PAUSE).await;
        }
    }
    publisher.finish().await?;
    let cpu = CpuTime::of_this_process().since(&cpu_before);
    Ok(PublisherLine {
        published: messages.cookies(),
        refused: 0,
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: cpu.total().as_secs_f64(),
    })
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
}
