//! Statuses of rejected calls and ended streams, and trailers.

use http::HeaderMap;
use tonic::{Code, Status};

use crate::streams::CallError;

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let code = match error {
            CallError::InvalidName(_)
            | CallError::CursorBeyondLog { .. }
            | CallError::MissingPosition
            | CallError::PositionBeyondLog => Code::InvalidArgument,
            CallError::TooManySubscribers => Code::ResourceExhausted,
            CallError::OtherLog => Code::FailedPrecondition,
            CallError::NoStream => Code::NotFound,
            CallError::Superseded => Code::Aborted,
            CallError::Draining => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}

/// Trailers with `status`.
pub(super) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if let Err(error) = status.add_header(&mut trailers) {
        tracing::debug!(%error, "failed to encode a status as headers");
    }
    trailers
}

#[cfg(test)]
mod tests {
    use proto::units::Sequence;

    use super::*;

    #[track_caller]
    fn check(status: impl Into<Status>, code: Code, message: &str) {
        let status = status.into();
        assert_eq!((status.code(), status.message()), (code, message));
    }

    #[test]
    fn each_rejection_and_end_has_its_code_and_message() {
        check(
            CallError::InvalidName("host"),
            Code::InvalidArgument,
            "invalid host; expected 1 to 256 bytes of printable characters, without a space at either end",
        );
        check(
            CallError::CursorBeyondLog {
                cursor: Sequence(7),
                newest: Sequence(5),
            },
            Code::InvalidArgument,
            "cursor 7 is beyond the newest sequence number of this epoch, 5",
        );
        check(
            CallError::TooManySubscribers,
            Code::ResourceExhausted,
            "too many subscribers",
        );
        check(
            CallError::MissingPosition,
            Code::InvalidArgument,
            "missing field `durable`",
        );
        check(
            CallError::OtherLog,
            Code::FailedPrecondition,
            "the cursor belongs to another producer or epoch",
        );
        check(
            CallError::PositionBeyondLog,
            Code::InvalidArgument,
            "a sequence number is beyond the end of the log",
        );
        check(
            CallError::NoStream,
            Code::NotFound,
            "the subscriber has no open stream from this network",
        );
        check(
            CallError::Superseded,
            Code::Aborted,
            "superseded by a newer stream of this subscriber",
        );
        check(
            CallError::Draining,
            Code::Unavailable,
            "the producer is shutting down",
        );
    }
}
