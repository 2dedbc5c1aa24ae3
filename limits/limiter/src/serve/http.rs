//! The HTTP API: routes, methods and responses.
//!
//! All resources that an untrusted client can use are bounded: connections in total and per address, size and time of
//! headers and body, waiting reservations, counters, and the time that responses stay unread.
//!
//! Without tokens, the port listens on loopback and rejects requests from pages of other sites. It recognizes them by
//! site and host headers, and by a body whose content type is not JSON.

use http::{HeaderValue, StatusCode, header};
use runtime::{
    rate_limit::{HeaderFormat, Quota},
    reply::{Reply, content, text},
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::Request,
    engine::Slot,
    problem::{self, Problem},
    request::{CallKind, Endpoint, GET, LimitedCall, Path, Query, is_json},
    response::{Answer, CallAnswer, SlotBody},
    service::Service,
};

/// Description of the API in OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("../../openapi.json");

impl Service {
    /// Handles a request. A waiting reservation returns at its slot, or when `stop` is cancelled.
    pub(super) async fn http(&self, request: &Request<'_>, stop: &CancellationToken) -> Answer {
        let path = Path::of(request.head.path);
        let endpoint = match &path {
            Ok(Path::Call(endpoint, _)) => Some(*endpoint),
            _ => None,
        };
        let answer = match path {
            Ok(path) => self.route(path, request, stop).await,
            Err(problem) => Err(problem),
        };
        let answer = answer.unwrap_or_else(|problem| Answer::Other(self.problem(&problem)));
        let status = match &answer {
            Answer::Call(_) => StatusCode::OK,
            Answer::Other(reply) => reply.status(),
        };
        self.metrics.responded(endpoint, status);
        answer
    }

    /// The response to a request that cannot be read.
    pub(super) fn refuse(&self, problem: &Problem) -> Answer {
        let reply = self.problem(problem);
        self.metrics.responded(None, reply.status());
        Answer::Other(reply)
    }

    async fn route(
        &self,
        path: Path<'_>,
        request: &Request<'_>,
        stop: &CancellationToken,
    ) -> Result<Answer, Problem> {
        let Request {
            head,
            headers,
            body,
        } = request;
        let client = self.authenticate(headers)?;
        match path {
            Path::Call(endpoint, first) => {
                check_method(head.method, endpoint.methods())?;
                let query = Query::of(head.query)?;
                let is_post = endpoint != Endpoint::Delay;
                if is_post && !is_json(headers, !body.is_empty()) {
                    return Err(Problem::new(problem::MEDIA_TYPE, ""));
                }
                let now = self.decider.clock.now();
                let mut call = LimitedCall::read(endpoint, first, query, body, now)?;
                let result = self.process(&mut call, &client, stop).await;
                let slot = match &result {
                    Ok((slot, _)) => Some(slot),
                    Err(problem) => problem.extensions.get::<Slot>(),
                };
                let quota = slot.and_then(|slot| self.quota(&call, slot));
                Ok(match result {
                    Ok((slot, has_effect)) => Answer::Call(CallAnswer {
                        body: call_body(call.kind, &slot, has_effect),
                        quota: quota.map_or_else(String::new, |it| it.lines(self.fields)),
                    }),
                    Err(problem) => {
                        let mut reply = self.problem(&problem);
                        if let Some(quota) = quota {
                            quota.write(self.fields, reply.headers_mut());
                        }
                        Answer::Other(reply)
                    }
                })
            }
            Path::Problem(name) => {
                check_method(head.method, GET)?;
                let mut kinds = problem::KINDS.iter();
                let kind = kinds.find(|kind| kind.name == name);
                let kind = kind.ok_or_else(|| Problem::new(problem::NOT_FOUND, ""))?;
                let page = format!("{} ({})\n\n{}\n", kind.title, kind.status, kind.advice);
                Ok(Answer::Other(text(StatusCode::OK, page)))
            }
            Path::OpenApi => {
                check_method(head.method, GET)?;
                let reply = content(StatusCode::OK, "application/json", OPENAPI);
                Ok(Answer::Other(reply))
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

fn call_body(kind: CallKind, slot: &Slot, has_effect: bool) -> SlotBody {
    let mut body = SlotBody::of(slot);
    match kind {
        CallKind::Delay { .. } | CallKind::Reserve { .. } => {}
        CallKind::Increment { .. } => body.counted = Some(has_effect),
        CallKind::Feedback { ignored, .. } => {
            body.applied = Some(has_effect);
            body.ignored = Some(ignored);
        }
    }
    body
}

fn check_method(method: &str, allowed: &'static str) -> Result<(), Problem> {
    if allowed.split(", ").any(|it| it == method) {
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
