//! Response bodies as JSON; problems as `application/problem+json` (RFC 9457).

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body_util::Full;
use serde::Serialize;

use super::{
    super::{
        clock::timestamp,
        engine::Slot,
        problem::{Problem, QUOTA_EXCEEDED, UNAUTHORIZED},
    },
    HttpResponse,
};

/// Earliest time for a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SlotBody {
    /// Of reported calls: whether they have an effect, which they have not if they are too old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counted: Option<bool>,
    /// Of feedback: whether it restricts the counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) learned: Option<bool>,
    /// Start of the slot (RFC 3339), with nanosecond precision.
    at: String,
    /// Time of the limiter's clock at the response.
    now: String,
    /// Seconds from `now` to `at`; 0 if the call may proceed. Independent of the client's clock.
    wait: f64,
    /// What delays the call: `limit/rule`, `learned` for partner feedback, or null.
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
            learned: None,
            at: timestamp(slot.at),
            now: timestamp(slot.now),
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

pub(super) fn problem_response(problem: &Problem) -> HttpResponse {
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
    let mut response = to_json(&body);
    *response.status_mut() = problem.kind.status;
    let headers = response.headers_mut();
    let media_type = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, media_type);
    if let Some(seconds) = problem.retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(methods) = problem.allow {
        headers.insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    if problem.kind == UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        headers.insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}

pub(super) fn to_json(body: &impl Serialize) -> HttpResponse {
    let mut body = serde_json::to_vec(body).expect("strings and numbers are JSON");
    body.push(b'\n');
    text(body, "application/json")
}

pub(super) fn text(body: impl Into<Bytes>, media_type: &'static str) -> HttpResponse {
    let mut response = Response::new(Full::new(body.into()));
    let media_type = HeaderValue::from_static(media_type);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    response
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
