//! The response to a call. It contains the slot of the call, that is, the earliest time at which the client may send its request.

use std::collections::BTreeMap;

use serde::Serialize;

use runtime::reply::Reply;

use super::{clock::timestamp, engine::Slot};

/// Headers of the response to a call; those that `runtime::reply::json` sets.
pub(super) const HEADERS: &str = "content-type: application/json\r\ncache-control: no-store\r\n\
    x-content-type-options: nosniff\r\ncontent-security-policy: frame-ancestors 'none'\r\n";

/// A response.
pub(super) enum Answer {
    /// To a call that was decided.
    Call(CallAnswer),
    /// Any other.
    Other(Reply),
}

/// The response to a call.
pub(super) struct CallAnswer {
    pub(super) body: SlotBody,
    /// Lines of the rate-limit headers.
    pub(super) quota: String,
}

/// Earliest time for a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SlotBody {
    /// For reported calls: false if they are too old to have an effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counted: Option<bool>,
    /// For feedback: whether it restricts the counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) applied: Option<bool>,
    /// For feedback: ignored header fields, each with the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ignored: Option<BTreeMap<&'static str, &'static str>>,
    /// Start of the slot (RFC 3339), with nanosecond precision.
    at: String,
    /// Time of the limiter's clock at the response.
    now: String,
    /// Seconds from `now` to `at`; 0 if the call may proceed. Independent of the client's clock.
    wait: f64,
    /// Cause of the delay: `limit/rule`, `feedback` for partner feedback, or null.
    binding: Option<String>,
}

impl SlotBody {
    pub(super) fn of(slot: &Slot) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the precision is at least a microsecond"
        )]
        let wait = slot.at.saturating_sub(slot.now) as f64 / 1e9;
        Self {
            counted: None,
            applied: None,
            ignored: None,
            at: timestamp(slot.at),
            now: timestamp(slot.now),
            wait,
            binding: slot.binding.as_ref().map(ToString::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_have_nanosecond_precision() {
        assert_eq!(
            timestamp(1_700_000_000_000_000_001),
            "2023-11-14T22:13:20.000000001Z"
        );
        assert_eq!(
            timestamp(1_700_000_000_000_000_000),
            "2023-11-14T22:13:20.000000000Z"
        );
    }
}
