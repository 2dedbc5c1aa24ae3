//! How each system is used here, in words.

use bench::{load::Plan, report::grouped};

use crate::peers::{
    message::{LANES, burst, xread_entries},
    ours,
    peer::Peer,
};

impl Peer {
    /// What travels together when `batch` cookies share a message.
    pub(super) fn batched(self, batch: u32) -> String {
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
    pub(super) fn acknowledged(self) -> &'static str {
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
    pub(super) fn kept(self, keep: u64) -> String {
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
