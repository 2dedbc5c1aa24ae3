//! Why a stream ended.

use std::{sync::Arc, time::Duration};

use proto::wire::WireError;
use tonic::Status;

use super::{buffer::Closed, sequence::ProtocolViolation};

/// Why a stream ended or failed to open.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    #[error("{0}")]
    Unreachable(String),
    #[error("{}: {}", .0.code(), .0.message())]
    Status(Box<Status>),
    #[error("superseded by a newer stream with the same subscriber name")]
    Superseded(Option<Arc<str>>),
    #[error("the producer drained")]
    Drained,
    #[error("the stream ended")]
    EndOfStream,
    #[error("no event for {0:?}")]
    Silent(Duration),
    #[error("protocol violation: {0}")]
    ProtocolViolation(#[from] ProtocolViolation),
    #[error("malformed message: {0}")]
    Wire(#[from] WireError),
    #[error("this consumer is stopping")]
    Stopped,
}

impl From<Status> for StreamEnd {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<Closed> for StreamEnd {
    fn from(_: Closed) -> Self {
        Self::Stopped
    }
}
