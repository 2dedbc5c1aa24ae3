//! The calls of subscribers, and why they are rejected.

use proto::{ids, limits::SUBSCRIBER_NAME_BYTES_MAX, units::Sequence};
use thiserror::Error;

/// The call that opened a stream. Subscribers are separate per call, so that a `GetCookies` client and a consumer that both
/// use their host name do not supersede each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// One cookie per message.
    GetCookies,
    /// Chunks and gaps.
    Subscribe,
}

impl Call {
    /// Value of the metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::GetCookies => "get_cookies",
            Self::Subscribe => "subscribe",
        }
    }
}

/// Why a call is rejected, or its stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CallError {
    /// The request field with the name of the subscriber is invalid.
    #[error(
        "invalid {0}; expected 1 to {SUBSCRIBER_NAME_BYTES_MAX} bytes of printable characters, without a space at either end"
    )]
    InvalidName(&'static str),
    /// The cursor is beyond the log.
    #[error("cursor {cursor} is beyond the newest sequence number of this epoch, {newest}")]
    CursorBeyondLog {
        /// Sequence number of the cursor.
        cursor: Sequence,
        /// Newest sequence number of the log.
        newest: Sequence,
    },
    /// All subscribers are connected, and there are as many as permitted.
    #[error("too many subscribers")]
    TooManySubscribers,
    /// A confirmation has no position.
    #[error("missing field `durable`")]
    MissingPosition,
    /// A confirmed position belongs to another log.
    #[error("the cursor belongs to another producer or epoch")]
    OtherLog,
    /// A confirmed position is beyond the log, or an applied position is beyond the durable one.
    #[error("a sequence number is beyond the end of the log")]
    PositionBeyondLog,
    /// A node confirms a position without a stream.
    #[error("the subscriber has no open stream from this network")]
    NoStream,
    /// A newer stream of the same subscriber supersedes this one.
    #[error("superseded by a newer stream of this subscriber")]
    Superseded,
    /// The producer drains.
    #[error("the producer is shutting down")]
    Draining,
}

/// Validates the name of a subscriber, the value of the request field `field`.
pub(super) fn check_name(name: &str, field: &'static str) -> Result<(), CallError> {
    ids::check_name(name).map_err(|_| CallError::InvalidName(field))
}
