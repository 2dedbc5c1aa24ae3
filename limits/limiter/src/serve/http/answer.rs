//! Answers as JSON; problems as `application/problem+json` (RFC 9457).

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::Full;
use limits::rules::LimitDefinition;
use serde::Serialize;

use super::super::{
    clock::moment,
    engine::Slot,
    limit_sources::Source,
    problem::{Problem, QUOTA_EXCEEDED, UNAUTHORIZED},
};

/// When a call may go.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SlotBody {
    /// Of calls that were made: whether they have an effect; not when they were made too long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counted: Option<bool>,
    /// Of a partner's answer: whether it lowers what may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) learned: Option<bool>,
    /// The first moment, to the nanosecond (RFC 3339).
    at: String,
    /// The limiter's clock when it answers.
    now: String,
    /// Seconds from `now` to `at`; 0 when the call may go. Who goes by this needs no clock that agrees with the limiter's.
    wait: f64,
    /// What the call waits for: `limit/rule`, `learned`, or nothing.
    binding: Option<String>,
}

/// A limit in force.
#[derive(Debug, Serialize)]
pub(super) struct LimitBody<'a> {
    pub(super) name: &'a str,
    /// Where its terms come from.
    pub(super) source: Source,
    pub(super) terms: LimitDefinition,
}

impl SlotBody {
    pub(super) fn of(slot: &Slot) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a wait is told to the microsecond at least"
        )]
        let wait = slot.at.saturating_sub(slot.now) as f64 / 1e9;
        Self {
            counted: None,
            learned: None,
            at: moment(slot.at),
            now: moment(slot.now),
            wait,
            binding: slot.binding.as_ref().map(ToString::to_string),
        }
    }
}

#[derive(Serialize)]
struct ProblemBody<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    detail: &'a str,
    #[serde(flatten)]
    slot: Option<&'a SlotBody>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

/// A problem.
pub(in super::super) fn problem(problem: &Problem) -> Response<Full<Bytes>> {
    let slot = problem.slot.as_deref().map(SlotBody::of);
    let binding = slot.as_ref().and_then(|slot| slot.binding.as_deref());
    let is_quota = problem.kind == QUOTA_EXCEEDED;
    let body = ProblemBody {
        r#type: problem.kind.uri(),
        title: problem.kind.title,
        status: problem.kind.status.as_u16(),
        detail: &problem.detail,
        slot: slot.as_ref(),
        violated_policies: binding.into_iter().filter(|_| is_quota).collect(),
    };
    let mut answer = json(&body);
    *answer.status_mut() = problem.kind.status;
    let headers = answer.headers_mut();
    let media_type = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, media_type);
    if let Some(seconds) = problem.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if problem.kind == UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        headers.insert(header::WWW_AUTHENTICATE, bearer);
    }
    answer
}

/// A JSON answer.
pub(super) fn json(body: &impl Serialize) -> Response<Full<Bytes>> {
    let mut body = serde_json::to_vec(body).expect("texts and numbers are JSON");
    body.push(b'\n');
    text(body, "application/json")
}

/// A text.
pub(super) fn text(body: impl Into<Bytes>, media_type: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(body.into()));
    let media_type = HeaderValue::from_static(media_type);
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_to_the_nanosecond() {
        assert_eq!(
            moment(1_700_000_000_000_000_001),
            "2023-11-14T22:13:20.000000001Z"
        );
        assert_eq!(
            moment(1_700_000_000_000_000_000),
            "2023-11-14T22:13:20.000000000Z"
        );
    }
}
