//! The limiter over HTTP: a few paths, JSON.

mod answer;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header, request::Parts};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use runtime::rate_limit::{Fields, Quota};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use self::answer::problem as problem_answer;
use self::answer::{LimitBody, SlotBody, json, text};
use super::{
    ask::{Asked, Call, Path, Query, What, is_json, method},
    engine::{Refused, Slot},
    problem::{self, Problem, refused},
    service::{self, Service},
};

/// An answer.
pub(super) type Answer = Response<Full<Bytes>>;

/// What can be asked, as OpenAPI 3.1.
pub const OPENAPI: &str = include_str!("../../openapi.json");

impl Service {
    /// Answers a request; where it is to wait for its slot, then, or as soon as `stop` is cancelled.
    pub(super) async fn http(
        &self,
        request: Request<Incoming>,
        stop: &CancellationToken,
    ) -> Answer {
        let began = Instant::now();
        let path = request.uri().path().to_owned();
        let path = Path::of(&path);
        let call = match &path {
            Ok(Path::Call(call, _)) => Some(*call),
            _ => None,
        };
        let (head, body) = request.into_parts();
        let mut body = Some(body);
        let answered = match path {
            Ok(path) => self.route(path, &head, &mut body, stop, began).await,
            Err(problem) => Err(problem),
        };
        let mut answer = answered.unwrap_or_else(|problem| self.problem(&problem));
        if body.is_some_and(|body| !body.is_end_stream()) {
            // The rest of the request would be in the way of the next one.
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        self.metrics.answered(call, answer.status());
        answer
    }

    /// Leaves the body there if it is not read whole.
    async fn route(
        &self,
        path: Path<'_>,
        head: &Parts,
        body: &mut Option<Incoming>,
        stop: &CancellationToken,
        began: Instant,
    ) -> Result<Answer, Problem> {
        let holder = self.admit(head)?;
        match path {
            Path::Call(call, first) => {
                expect(&head.method, &method(call))?;
                let query = Query::of(head.uri.query().unwrap_or_default())?;
                let has_body = body.as_ref().is_some_and(|body| !body.is_end_stream());
                let body = match call {
                    Call::Delay => Bytes::new(),
                    _ if !is_json(&head.headers, has_body) => {
                        return Err(Problem::new(problem::MEDIA_TYPE, ""));
                    }
                    _ => self.body(body).await?,
                };
                let mut asked = Asked::read(call, first, query, &body)?;
                let answered = self.answer(&mut asked, &holder, stop, began).await;
                let slot = match &answered {
                    Ok(answer) => Some(&answer.slot),
                    Err(problem) => problem.slot.as_deref(),
                };
                let quota = slot.and_then(|slot| self.quota(&asked, slot));
                let mut answer = match answered {
                    Ok(answer) => answer_of(call, &answer),
                    Err(problem) => self.problem(&problem),
                };
                if let Some(quota) = quota {
                    quota.write(self.fields, answer.headers_mut());
                }
                Ok(answer)
            }
            Path::Limit(limit) => {
                self.may_use(&holder, &limit)?;
                expect(&head.method, &Method::GET)?;
                self.limit(&limit)
            }
            Path::Problem(name) => {
                expect(&head.method, &Method::GET)?;
                let mut kinds = problem::KINDS.iter();
                let kind = kinds.find(|kind| kind.name == name);
                let kind = kind.ok_or_else(|| Problem::new(problem::NOT_FOUND, ""))?;
                let page = format!("{} ({})\n\n{}\n", kind.title, kind.status, kind.advice);
                Ok(text(page, "text/plain; charset=utf-8"))
            }
            Path::OpenApi => {
                expect(&head.method, &Method::GET)?;
                Ok(text(OPENAPI, "application/json"))
            }
            Path::Other => Err(Problem::new(problem::NOT_FOUND, "")),
        }
    }

    /// The terms of a limit in force, and where they come from.
    fn limit(&self, name: &str) -> Result<Answer, Problem> {
        let plan = self.sources.plan();
        let unknown = || refused(Refused::UnknownLimit(name.to_owned()), 0);
        Ok(json(&LimitBody {
            name,
            source: plan.source(name),
            terms: plan.terms(name).ok_or_else(unknown)?,
        }))
    }

    fn problem(&self, problem: &Problem) -> Answer {
        self.metrics.problem(problem);
        problem_answer(problem)
    }

    /// What is left to calls like this one, for the fields of its answer.
    fn quota(&self, asked: &Asked, slot: &Slot) -> Option<Quota> {
        if self.fields == Fields::Off {
            return None;
        }
        let binding = slot.binding.as_ref();
        // By the clock that goes here: that of a server may differ.
        let now = self.clock.now();
        let (of, is_told) = (asked.targets(), self.decider.has_server());
        let left = self.engine.left(&of, binding, is_told, now)?;
        Some(Quota {
            policy: left.rule.to_string(),
            most: left.most,
            window: left.window,
            remaining: left.remaining,
            reset: Duration::from_nanos(left.more_at.saturating_sub(now)),
        })
    }
}

/// The limits and counters of a call with this path, query and body; none where the path is of no call.
///
/// # Errors
/// Why it is refused, at `now`.
pub fn counters(
    path: &str,
    query: &str,
    body: &[u8],
    now: u64,
) -> Result<Vec<(String, String)>, Problem> {
    let Path::Call(call, first) = Path::of(path)? else {
        return Ok(Vec::new());
    };
    let asked = Asked::read(call, first, Query::of(query)?, body)?;
    if let What::Feedback(feedback) = &asked.what {
        feedback.said(now)?;
    }
    let counters = asked.of.into_iter();
    Ok(counters.map(|it| (it.limit, it.counter)).collect())
}

fn answer_of(call: Call, answer: &service::Answer) -> Answer {
    let mut slot = SlotBody::of(&answer.slot);
    match call {
        Call::Delay | Call::Reserve => {}
        Call::Increment => slot.counted = Some(answer.has_effect),
        Call::Feedback => slot.learned = Some(answer.has_effect),
    }
    json(&slot)
}

fn expect(method: &Method, expected: &Method) -> Result<(), Problem> {
    let is_it = method == expected || (method == Method::HEAD && expected == Method::GET);
    is_it.then_some(()).ok_or_else(|| {
        let detail = format!("use {expected}");
        Problem::new(problem::METHOD, detail)
    })
}
