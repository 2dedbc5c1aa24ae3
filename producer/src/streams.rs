//! gRPC output: two server-streaming calls that send chunks of the log without copying them.
//!
//! A tonic codec would copy each message into a buffer per stream. The module `server` has its own response body, whose data
//! frames are the shared bytes of a chunk, including the length prefix. A delivery thus costs a reference count and a
//! share of a system call. The body takes a chunk from the log only when HTTP/2 has capacity for it. Until then, the log
//! can drop the chunk if the subscriber is slow.

mod call;
mod confirm;
mod cookie_messages;
pub mod in_flight;
mod resume;
mod session;
mod subscribe;
pub mod subscribers;
pub mod times_to_live;

use std::sync::Arc;

pub(crate) use self::{
    call::CallError,
    cookie_messages::CACHED_CHUNKS_MAX,
    session::{Session, Step},
};
use self::{
    cookie_messages::CookieMessages,
    in_flight::StreamBudget,
    session::MessageFormat,
    subscribers::{Lease, Subscribers},
    times_to_live::TimesToLive,
};
use crate::{epoch_history::EpochHistory, log::Log};

/// The streams of one producer; clones share them.
#[derive(Debug, Clone)]
pub struct Streams {
    config: Arc<Config>,
    /// Messages without deletions, and messages with deletions.
    cookie_messages: [Arc<CookieMessages>; 2],
}

/// Parts and configuration of all streams.
#[derive(Debug)]
pub struct Config {
    /// The log from which streams read.
    pub log: Log,
    /// The subscribers.
    pub subscribers: Subscribers,
    /// Bounds the in-flight bytes.
    pub budget: StreamBudget,
    /// The id of this producer, the same across restarts.
    pub producer_id: String,
    /// Maximum lag of a subscriber, in cookies.
    pub queue_cookies_max: u64,
    /// Maximum bytes to resend to a subscriber that reconnects without a cursor: the bytes that can be lost with a connection,
    /// in its windows and in the buffers of two kernels. Less if the client stated a smaller window.
    pub rewind_bytes: usize,
    /// Ends of earlier epochs of this producer.
    pub epoch_history: EpochHistory,
    /// Times to live that `Subscribe` sends.
    pub times_to_live: TimesToLive,
}

impl Streams {
    /// Creates the streams of a producer with these parts.
    pub fn new(config: Config) -> Self {
        Self {
            config: Arc::new(config),
            cookie_messages: [false, true].map(|it| Arc::new(CookieMessages::new(it))),
        }
    }

    fn session(&self, lease: Lease, format: MessageFormat) -> Session {
        let config = &self.config;
        let (first, until) = (lease.start.first, lease.start.catching_up_until);
        Session {
            reader: config.log.reader(first, config.queue_cookies_max, until),
            in_flight: config.budget.open(lease.in_flight()),
            lease,
            format,
        }
    }
}

/// Memory of a subscriber besides the log and in-flight bytes: its state, metrics and stream.
pub(crate) const SUBSCRIBER_BYTES: usize = 32 * 1024;
