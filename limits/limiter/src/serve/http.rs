//! The HTTP API: routes, methods and responses.
//!
//! All resources that an untrusted client can use are bounded: connections in total and per address, size and time of
//! headers and body, waiting reservations, counters, and the time that responses stay unread.
//!
//! Without tokens, the port listens on loopback and rejects requests from pages of other sites. It recognizes them by
//! site and host headers, and by a body whose content type is not JSON.

use http::{HeaderValue, Method, Request, StatusCode, header, request::Parts};
use hyper::body::Incoming;
use runtime::{
    rate_limit::{HeaderFormat, Quota},
    reply::{Reply, content, json, text},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    engine::Slot,
    problem::{self, Problem},
    request::{CallKind, Endpoint, GET, LimitedCall, Path, Query, is_json},
    response::SlotBody,
    service::{self, Service},
};

/// Description of the API in OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("../../openapi.json");

impl Service {
    /// Handles a request. A waiting reservation returns at its slot, or when `stop` is cancelled.
    pub(super) async fn http(&self, request: Request<Incoming>, stop: &CancellationToken) -> Reply {
        let began = Instant::now();
        let (head, body) = request.into_parts();
        let path = Path::of(head.uri.path());
        let endpoint = match &path {
            Ok(Path::Call(endpoint, _)) => Some(*endpoint),
            _ => None,
        };
        let body = service::read_body(body).await;
        let is_read = body.is_ok();
        let response = match (path, body) {
            (Ok(path), Ok(body)) => self.route(path, &head, &body, stop, began).await,
            (Err(problem), _) | (_, Err(problem)) => Err(problem),
        };
        let mut response = response.unwrap_or_else(|problem| self.problem(&problem));
        if !is_read {
            // The next request would start after the rest of this body.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        self.metrics.responded(endpoint, response.status());
        response
    }

    async fn route(
        &self,
        path: Path<'_>,
        head: &Parts,
        body: &[u8],
        stop: &CancellationToken,
        began: Instant,
    ) -> Result<Reply, Problem> {
        let client = self.authenticate(head)?;
        match path {
            Path::Call(endpoint, first) => {
                check_method(&head.method, endpoint.methods())?;
                let query = Query::of(head.uri.query().unwrap_or_default())?;
                let is_post = endpoint != Endpoint::Delay;
                if is_post && !is_json(&head.headers, !body.is_empty()) {
                    return Err(Problem::new(problem::MEDIA_TYPE, ""));
                }
                let now = self.decider.clock.now();
                let mut call = LimitedCall::read(endpoint, first, query, body, now)?;
                let result = self.process(&mut call, &client, stop, began).await;
                let slot = match &result {
                    Ok((slot, _)) => Some(slot),
                    Err(problem) => problem.extensions.get::<Slot>(),
                };
                let quota = slot.and_then(|slot| self.quota(&call, slot));
                let mut response = match result {
                    Ok((slot, has_effect)) => call_response(call.kind, &slot, has_effect),
                    Err(problem) => self.problem(&problem),
                };
                if let Some(quota) = quota {
                    quota.write(self.fields, response.headers_mut());
                }
                Ok(response)
            }
            Path::Problem(name) => {
                check_method(&head.method, GET)?;
                let mut kinds = problem::KINDS.iter();
                let kind = kinds.find(|kind| kind.name == name);
                let kind = kind.ok_or_else(|| Problem::new(problem::NOT_FOUND, ""))?;
                let page = format!("{} ({})\n\n{}\n", kind.title, kind.status, kind.advice);
                Ok(text(StatusCode::OK, page))
            }
            Path::OpenApi => {
                check_method(&head.method, GET)?;
                Ok(content(StatusCode::OK, "application/json", OPENAPI))
            }
            Path::Other => Err(Problem::new(problem::NOT_FOUND, "")),
        }
    }

    fn problem(&self, problem: &Problem) -> Reply {
        let problems = &self.metrics.problems;
        problems.with_label_values(&[problem.kind.name]).inc();
        problem.reply()
    }

    /// Remaining quota for the rate-limit headers of a response.
    fn quota(&self, call: &LimitedCall, slot: &Slot) -> Option<Quota> {
        if self.fields == HeaderFormat::Off {
            return None;
        }
        let binding = slot.binding.as_ref();
        // Not `slot.now`, which may be the time of the sharing server.
        let now = self.decider.clock.now();
        let engine = &self.decider.engine;
        engine.remaining(&call.counters, binding, now)
    }
}

fn call_response(kind: CallKind, slot: &Slot, has_effect: bool) -> Reply {
    let mut body = SlotBody::of(slot);
    match kind {
        CallKind::Delay { .. } | CallKind::Reserve { .. } => {}
        CallKind::Increment { .. } => body.counted = Some(has_effect),
        CallKind::Feedback { ignored, .. } => {
            body.applied = Some(has_effect);
            body.ignored = Some(ignored);
        }
    }
    json(StatusCode::OK, &body)
}

fn check_method(method: &Method, allowed: &'static str) -> Result<(), Problem> {
    if allowed.split(", ").any(|it| method == it) {
        return Ok(());
    }
    let detail = format!("{method} is not allowed here; use {allowed}");
    let mut problem = Problem::new(problem::METHOD, detail);
    let allowed = HeaderValue::from_static(allowed);
    problem.headers.insert(header::ALLOW, allowed);
    Err(problem)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn openapi_lists_every_problem_type() {
        let description: Value = serde_json::from_str(OPENAPI).unwrap();
        let types = &description["components"]["schemas"]["Problem"]["properties"]["type"]["enum"];
        let types: Vec<&str> = types
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let kinds: Vec<String> = problem::KINDS.iter().map(|kind| kind.uri()).collect();
        assert_eq!(types, kinds);
    }
}
