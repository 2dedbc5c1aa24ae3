//! Publishes the log to an archive, from which nodes recover what the log has evicted, or what a killed producer has lost.
//!
//! # How it works
//!
//! The archiver is one more [`Reader`](crate::log::Reader) of the log, without a maximum lag. It combines all events that are ready into one
//! message (`groups`), publishes the message until the archive acknowledges it, and only then begins the next one. Nothing later can
//! overtake a message, so a subject is in order however often connections break. Messages grow with the round trip, up to
//! [`GROUP_BYTES_MAX`](proto::archive::GROUP_BYTES_MAX).
//!
//! # Constraints
//!
//! - The edge, the log and the streams never wait for the archive. What the log evicts before it is archived is archived as a `Gap`.
//! - A message is published again unchanged, with the same id, so that the archive can recognize it.
//! - Memory: one message, besides the log.

mod groups;
#[cfg_attr(not(feature = "archive"), path = "archive/no_nats.rs")]
mod nats;
mod status;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prometheus::Histogram;
use proto::{archive::Origin, v1::EpochEnd};
use runtime::{connect::ArchiveError, metrics::Registry, reload::Reloader, token};
use tokio::time::{Instant, sleep, sleep_until};

use self::groups::{Group, Groups};
pub use self::{
    nats::{Nats, NodeReports},
    status::{State, Status},
};
use crate::{
    log::Log,
    streams::{subscribers::Subscribers, times_to_live::TimesToLive},
};

/// Time between two attempts to publish a message: doubled up to the maximum, less up to a half at random.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Time until the next attempt after the archive has refused a message: somebody must change a setting.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// A message that is published until it is acknowledged.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its subject.
    pub subject: String,
    /// The same for each attempt.
    pub id: String,
    /// Its events, see [`proto::archive`].
    pub payload: Bytes,
}

/// Publishes messages; connects when necessary.
pub trait Publisher: Send + 'static {
    /// Publishes a message, and returns when the archive has stored it.
    fn publish(
        &mut self,
        message: &Message,
    ) -> impl Future<Output = Result<(), ArchiveError>> + Send;
}

/// Publishes a log.
#[derive(Debug)]
pub struct Archiver {
    log: Log,
    groups: Groups,
    status: Status,
    acknowledgements: Histogram,
    bytes_per_second: u64,
}

/// The parts of an archiver.
#[derive(Debug)]
pub struct Config {
    /// The log.
    pub log: Log,
    /// Maximum size of its chunks.
    pub chunk_bytes: usize,
    /// The id of the producer.
    pub producer_id: String,
    /// Ends of its earlier epochs.
    pub epoch_ends: Vec<EpochEnd>,
    /// The current times to live.
    pub times_to_live: TimesToLive,
    /// Maximum rate.
    pub bytes_per_second: u64,
}

/// Where the reports of nodes go that read the archive, and what proves them.
#[derive(Debug)]
pub struct ReportIntake {
    /// The id of the producer.
    pub producer_id: String,
    /// The log in which nodes have positions.
    pub log: Log,
    /// The subscribers and nodes.
    pub subscribers: Subscribers,
    /// The tokens of subscribers. Without them, no report is proven.
    pub tokens: Option<Arc<Reloader<token::File>>>,
}

impl Archiver {
    /// An archiver that reports to `status`.
    ///
    /// # Errors
    /// When its metric is registered already.
    pub fn new(config: Config, status: Status, registry: &Registry) -> prometheus::Result<Self> {
        let origin = Origin {
            producer_id: config.producer_id,
            epoch: config.log.epoch(),
        };
        Ok(Self {
            groups: Groups::new(
                &config.log,
                &origin,
                config.chunk_bytes,
                config.epoch_ends,
                &config.times_to_live,
            ),
            log: config.log,
            status,
            acknowledgements: registry.add(metric_defs::producer::ARCHIVE_SECONDS)?,
            bytes_per_second: config.bytes_per_second,
        })
    }

    /// Publishes everything in the log; returns when the log is closed and its end is acknowledged.
    pub async fn run(mut self, mut publisher: impl Publisher) {
        let mut next = Instant::now();
        while let Some(group) = self.groups.next().await {
            sleep_until(next).await;
            let bytes = group.message.payload.len() as u64;
            self.publish(&mut publisher, &group).await;
            let seconds = bytes as f64 / self.bytes_per_second as f64;
            next = next.max(Instant::now()) + Duration::from_secs_f64(seconds);
        }
    }

    async fn publish(&self, publisher: &mut impl Publisher, group: &Group) {
        let began = Instant::now();
        let mut delay = RETRY_MIN;
        loop {
            let error = match publisher.publish(&group.message).await {
                Ok(()) => break,
                Err(error) => error,
            };
            self.status.failed(&error, began.elapsed());
            sleep(match error {
                ArchiveError::Refused(_) => REFUSED_RETRY,
                ArchiveError::Unavailable(_) => delay.mul_f64(0.5 + fastrand::f64() / 2.0),
            })
            .await;
            delay = (delay * 2).min(RETRY_MAX);
        }
        let position = self.groups.position();
        let lag = self.log.ages([position]).into_iter().sum();
        self.status.acknowledged(group.cookies, group.lost, lag);
        self.acknowledgements.observe(began.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests;
