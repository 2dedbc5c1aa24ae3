//! The systems that are compared, and what is true of how each is used here.

use bench::{load::Plan, report::grouped};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{
    message::{COOKIE_BYTES_MAX, LANES},
    ours,
    publisher::burst,
};

/// A system that can carry cookies from one to many.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Peer {
    /// A producer of this project.
    Ours,
    /// NATS core: `nats-server`.
    Nats,
    /// Redis pub/sub: `redis-server`.
    RedisPubsub,
    /// Redis Streams: `redis-server`.
    RedisStreams,
    /// A fanout exchange of RabbitMQ: `rabbitmq-server`.
    Rabbitmq,
}

/// Most that one XREAD asks for: 123 entries of 500 cookies.
const READ_BYTES: usize = 4 * 1024 * 1024;

/// Most entries that one XREAD asks for.
const READ_ENTRIES: usize = 1_000;

impl Peer {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 5] = [
        Self::Ours,
        Self::Nats,
        Self::RedisPubsub,
        Self::RedisStreams,
        Self::Rabbitmq,
    ];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nats => "nats",
            Self::RedisPubsub => "redis-pubsub",
            Self::RedisStreams => "redis-streams",
            Self::Rabbitmq => "rabbitmq",
        }
    }

    /// The batches of `all` at which it is measured, by size: ours has no such setting, and all but one at a time are the same to it.
    #[must_use]
    pub fn batches(self, all: &[u32]) -> Vec<u32> {
        let mut batches = all.to_vec();
        batches.sort_unstable();
        batches.dedup_by_key(|batch| match self {
            Self::Ours => (*batch).min(2),
            _ => *batch,
        });
        batches
    }

    /// How cookies reach its subscribers when `batch` share a message, as in names.
    #[must_use]
    pub fn packing(self, batch: u32) -> String {
        match (self, batch) {
            (Self::Ours, 2..) => "in chunks".to_owned(),
            (_, batch) => format!("{batch} a message"),
        }
    }

    /// The same as in tables.
    #[must_use]
    pub fn packing_short(self, batch: u32) -> String {
        match (self, batch) {
            (Self::Ours, 2..) => "chunks".to_owned(),
            (_, batch) => batch.to_string(),
        }
    }

    /// What travels together when `batch` cookies share a message.
    #[must_use]
    pub fn batched(self, batch: u32) -> String {
        let requests = format!(
            "each cookie is a request, over {} connections and {} threads, {} unanswered on each connection",
            ours::CONNECTIONS,
            Plan::default_threads(),
            ours::PIPELINE
        );
        let lanes = format!("over {LANES} connections, a task each, and a thread for each core");
        let burst = burst(batch);
        match (self, batch) {
            (Self::Ours, 1) => format!("{requests}; a message of GetCookies"),
            (Self::Ours, _) => format!(
                "{requests}; the producer makes chunks of at most 64 KiB or 10 ms by itself"
            ),
            (Self::Nats, _) => {
                format!("messages of {batch}, {lanes}; the client writes what has gathered")
            }
            (Self::RedisPubsub, _) => {
                format!(
                    "PUBLISH of {batch}, {lanes}; on each a pipeline of up to {burst} under way"
                )
            }
            (Self::RedisStreams, _) => format!(
                "XADD of {batch}, {lanes}; on each a pipeline of up to {burst} under way; XREAD of up to {}",
                xread_entries(batch)
            ),
            (Self::Rabbitmq, _) => {
                format!(
                    "messages of {batch}, {lanes}; on each a channel, to which up to {burst} are written together"
                )
            }
        }
    }

    /// Who says yes to what.
    #[must_use]
    pub fn acknowledged(self) -> &'static str {
        match self {
            Self::Ours => {
                "every cookie, by its HTTP answer; nothing by subscribers, who resume from a cursor"
            }
            Self::Nats => "nothing; one flush at the end",
            Self::RedisPubsub | Self::RedisStreams => {
                "every command, by its reply to the pipeline; nothing by subscribers"
            }
            Self::Rabbitmq => "nothing: no publisher confirms, consumers with no_ack",
        }
    }

    /// What is kept for a subscriber that is behind.
    #[must_use]
    pub fn kept(self, keep: u64) -> String {
        let keep = grouped(keep);
        match self {
            Self::Ours => {
                format!("the newest {keep} cookies (--queue-cookies), in one log for all")
            }
            Self::Nats => "as by default: 64 MiB for a subscriber, 10 s for a write".to_owned(),
            Self::RedisPubsub => {
                "as by default: 32 MiB for a subscriber, or 8 MiB for 60 s".to_owned()
            }
            Self::RedisStreams => {
                format!("the newest {keep} cookies or a few more (MAXLEN ~), in one stream for all")
            }
            Self::Rabbitmq => format!(
                "the newest {keep} cookies (x-max-length, drop-head), in a transient queue for each subscriber"
            ),
        }
    }
}

/// Entries of `batch` cookies that one XREAD asks for.
pub(super) fn xread_entries(batch: u32) -> usize {
    (READ_BYTES / (batch as usize * COOKIE_BYTES_MAX)).clamp(1, READ_ENTRIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_measured_once_for_all_larger_messages() {
        let all = [500, 1, 100, 100];
        assert_eq!(Peer::Ours.batches(&all), [1, 100]);
        assert_eq!(Peer::Nats.batches(&all), [1, 100, 500]);
        assert_eq!(Peer::Ours.packing(100), "in chunks");
        assert_eq!(Peer::Nats.packing(100), "100 a message");
    }

    #[test]
    fn an_xread_asks_for_many_entries() {
        assert_eq!([1, 500, 10_000].map(xread_entries), [1_000, 123, 6]);
    }
}
