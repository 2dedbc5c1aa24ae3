//! Problem types of the API (RFC 9457).

use runtime::problem::Kind;
pub use runtime::problem::Problem;
use serde_json::Value;

use super::{
    clock::timestamp,
    engine::{CallError, FEEDBACK},
    response::SlotBody,
};

/// Maximum number of seconds added to Retry-After, so that clients rejected together do not retry together.
const SPREAD_SECONDS_MAX: u64 = 4;

runtime::problem_kinds! {
    QUOTA_EXCEEDED TOO_MANY_REQUESTS "quota-exceeded"
        "No slot within the maximum wait"
        "Only rules with `count_refused` count the refused call. The detail names the exhausted rule and the next slot. Retry after the \
         time in Retry-After, or with a larger `max_wait`. Under a global limit, slots can be booked at most 30 s ahead, and a token \
         must leave as many slots free as it books."
    UNKNOWN_LIMIT NOT_FOUND "unknown-limit"
        "Unknown limit"
        "Check the name of the limit. The operator of the limiter defines the limits; only counters are created on first use."
    NOT_FOUND NOT_FOUND "not-found"
        "Unknown path"
        "See /v1/openapi.json for all paths."
    METHOD METHOD_NOT_ALLOWED "method-not-allowed"
        "Method not allowed"
        "The Allow header lists the methods of this path. See /v1/openapi.json for all paths."
    INVALID BAD_REQUEST "invalid-request"
        "Invalid request"
        "The detail names the error. Do not retry the request unchanged."
    MEDIA_TYPE UNSUPPORTED_MEDIA_TYPE "media-type"
        "The body must be JSON"
        "Send Content-Type: application/json. Other types are rejected, because pages of other sites can make a browser send them."
    TOO_LARGE PAYLOAD_TOO_LARGE "too-large"
        "Request too large"
        "Send headers of up to 16 KiB, and a body of up to 8 KiB."
    LENGTH LENGTH_REQUIRED "length-required"
        "The length of the body is unknown"
        "Send the length of the body in one Content-Length, without Transfer-Encoding and Expect."
    OVER_BURST UNPROCESSABLE_ENTITY "too-many-at-once"
        "More requests than a rule allows in one burst"
        "Use a smaller `n`. The detail gives the maximum."
    TOO_MANY_RULES UNPROCESSABLE_ENTITY "too-many-rules"
        "The limits of the call have more than 16 rules in total"
        "Name fewer limits in one call."
    INVALID_RULE UNPROCESSABLE_ENTITY "invalid-rule"
        "Invalid rule for this counter"
        "Each call under a limit with `from_call` contains its rule: `interval` and `requests`. While a counter is in use, it accepts \
         only calls with the same rule. The detail names the error."
    TOO_EARLY UNPROCESSABLE_ENTITY "too-early"
        "The reported time is in the future"
        "The calls were not counted. Compare your clock with `now` in a response."
    UNAUTHORIZED UNAUTHORIZED "unauthorized"
        "Missing or invalid token"
        "Send Authorization: Bearer TOKEN with a token from the limiter's token file."
    FORBIDDEN FORBIDDEN "forbidden"
        "The token does not grant access to this limit"
        "The token file of the limiter lists the limits of each token. The operator of the limiter can add the limit."
    MISDIRECTED MISDIRECTED_REQUEST "misdirected"
        "Cross-site requests and non-loopback hosts are rejected"
        "Without a token file, the limiter serves only local programs. Use 127.0.0.1, ::1 or localhost as the host."
    COUNTER_LIMIT SERVICE_UNAVAILABLE "counter-limit-reached"
        "All counters are in use"
        "Retry after the time in Retry-After: unused counters are evicted automatically. The operator of the limiter sets the maximum with --counters."
    NOT_SAVED SERVICE_UNAVAILABLE "not-saved"
        "The limiter cannot write its state"
        "The change may have been counted without being saved. Retry after the time in Retry-After. The limiter's log names the cause."
    SERVER_LOST SERVICE_UNAVAILABLE "sharing-server-unavailable"
        "The server of the shared limits is unavailable"
        "The call was not granted, but may have been counted. Retry after the time in Retry-After. If you call the partner nevertheless, \
         report the call later through increment, with its time (`at`)."
}

/// A temporary problem. Retry-After varies from 1 to 5 s, so that clients do not retry together.
pub(super) fn transient(kind: &'static Kind, now: u64) -> Problem {
    Problem::new(kind, "").retry_after(1 + now % (SPREAD_SECONDS_MAX + 1))
}

/// The request is invalid.
pub(super) fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(INVALID, detail)
}

/// The engine or the sharing server rejected a call at `now`.
pub(super) fn rejected(error: CallError, now: u64) -> Problem {
    match error {
        CallError::UnknownLimit(name) => {
            Problem::new(UNKNOWN_LIMIT, format!("unknown limit {name:?}"))
        }
        CallError::InvalidRule(why) => Problem::new(INVALID_RULE, why),
        CallError::TooManyRules => Problem::new(TOO_MANY_RULES, ""),
        CallError::TooEarly => Problem::new(TOO_EARLY, ""),
        CallError::CounterLimit => transient(COUNTER_LIMIT, now),
        CallError::OverBurst { binding, max_burst } => {
            let rule = binding.map_or_else(|| "a rule".to_owned(), |it| it.to_string());
            let detail = format!("{rule} allows at most {max_burst} requests in one burst");
            Problem::new(OVER_BURST, detail)
        }
        CallError::OverMaxWait(slot) => {
            let seconds = slot.at.saturating_sub(slot.now).div_ceil(1_000_000_000);
            let spread = (now % (SPREAD_SECONDS_MAX + 1)).min(seconds / 10 + 1);
            let at = timestamp(slot.at);
            let detail = match slot.binding.as_deref() {
                Some(FEEDBACK) => format!("partner feedback allows no call before {at}"),
                Some(rule) => format!("{rule} allows no call before {at}"),
                None => format!("no call is allowed before {at}"),
            };
            let mut problem = Problem::new(QUOTA_EXCEEDED, detail)
                .retry_after(seconds.max(1).saturating_add(spread));
            if let Ok(Value::Object(body)) = serde_json::to_value(SlotBody::of(&slot)) {
                problem.members = body;
            }
            if let Some(binding) = &slot.binding {
                problem = problem.with("violated-policies", vec![binding.to_string()]);
            }
            problem.extensions.insert(slot);
            problem
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::engine::Slot, *};

    #[test]
    fn retry_after_is_never_before_the_slot() {
        let start = 1_700_000_000_000_000_000;
        for (wait, spread, expected) in [
            (1, 0, 1),
            (999_999_999, 0, 1),
            (1_000_000_000, 0, 1),
            (1_000_000_001, 0, 2),
            (30_000_000_000, 4, 34),
            (1_000_000_000, 4, 2),
        ] {
            let now = start + spread;
            let slot = Slot {
                at: now + wait,
                now,
                binding: Some(FEEDBACK.into()),
            };
            let problem = rejected(CallError::OverMaxWait(slot), now);
            assert_eq!(problem.retry_after, Some(expected), "{wait} {spread}");
        }
    }
}
