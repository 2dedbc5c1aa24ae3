//! The systems that are compared.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

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
}
