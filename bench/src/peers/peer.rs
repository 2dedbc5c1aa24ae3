//! The systems that are compared, and what is true of how each is used here.

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

    /// What travels together when `batch` cookies share a message.
    #[must_use]
    pub fn batched(self, batch: u32) -> String {
        match (self, batch) {
            (Self::Ours, 1) => "each cookie is a request (pipelined 32 deep) and a message of GetCookies".to_owned(),
            (Self::Ours, _) => "each cookie is a request (pipelined 32 deep); the producer makes chunks of at most 64 KiB or 10 ms by itself".to_owned(),
            (Self::Nats, batch) => format!("messages of {batch}; the client writes what has gathered"),
            (Self::RedisPubsub, batch) => format!("PUBLISH of {batch}, pipelined"),
            (Self::RedisStreams, batch) => format!("XADD of {batch}, pipelined; XREAD of many"),
            (Self::Rabbitmq, batch) => format!("messages of {batch}; the client writes what has gathered"),
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
        let keep = crate::report::grouped(keep);
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
