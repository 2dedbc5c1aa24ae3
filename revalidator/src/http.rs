//! The HTTP API: jobs, their results, and single checks.
//!
//! All resources that an untrusted client can use are bounded: connections, size and time of bodies, open jobs, and single checks
//! per second. Without tokens, the port listens only on loopback and rejects requests from pages of other sites.

mod body;
mod new_job;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderValue, Method, Request, StatusCode, header, request::Parts};
use hyper::body::{Body as _, Incoming};
use parking_lot::Mutex;
use runtime::{
    caller,
    reload::Reloader,
    reply::{Reply, content, json, text},
    token, unix_micros,
};
use serde_json::{Value, json as object};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

pub use self::new_job::Budget;
use crate::{
    apps::CurrentApps,
    client::Held,
    engine::Engine,
    jobs::{self, explained, is_throttled},
    maker::bodies::Bodies,
    messages::{JobStatus, RevalidatorState},
    mirror::{Mirror, change_job},
    problem::{self, Problem, broker, invalid},
};

/// Maximum number of results in a response, and size in bytes after which it ends.
const RESULTS_MAX: usize = 10;
const RESULT_BYTES: usize = 1 << 20;

/// Maximum wait for the next result; the response then ends.
const RESULT_WAIT: Duration = Duration::from_millis(500);

/// Permits for JSON bodies of requests in memory, and for large responses until they are sent.
static LARGE_REQUESTS: Semaphore = Semaphore::const_new(8);
static LARGE_RESPONSES: Semaphore = Semaphore::const_new(8);

async fn permit(of: &'static Semaphore) -> SemaphorePermit<'static> {
    of.acquire().await.expect("it is never closed")
}

/// The API.
pub struct Api<E> {
    /// The broker, once it is connected.
    pub engine: Arc<OnceLock<E>>,
    /// The copy of the broker's buckets.
    pub mirror: Mirror,
    /// The applications.
    pub apps: CurrentApps,
    /// Assets received in requests; `None` if this process has no maker.
    pub bodies: Option<Bodies>,
    /// Accepted tokens; `None` if clients need none.
    pub tokens: Option<Arc<Reloader<token::File>>>,
    /// Budget of single checks.
    pub budget: Mutex<Budget>,
}

impl<E: Engine> Api<E> {
    /// Handles a request.
    pub async fn handle(&self, request: Request<Incoming>) -> Reply {
        let (head, mut body) = request.into_parts();
        let response = self.route(&head, &mut body).await;
        let mut response = response.unwrap_or_else(|problem| problem.reply());
        if !body.is_end_stream() {
            // On this connection, the unread rest of the body would precede the next request.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }

    fn authenticate(&self, head: &Parts) -> Result<(), Problem> {
        let Some(tokens) = &self.tokens else {
            if caller::is_foreign(&head.headers, &head.uri) {
                return Err(Problem::new(problem::MISDIRECTED, ""));
            }
            return Ok(());
        };
        let client = tokens.current().authenticate(&head.headers);
        client.map_err(|error| Problem::new(problem::UNAUTHORIZED, error.to_string()))?;
        Ok(())
    }

    fn engine(&self) -> Result<&E, Problem> {
        let engine = self.engine.get().filter(|_| self.mirror.is_current());
        engine.ok_or_else(|| Problem::new(problem::BROKER, "not connected to NATS").retry_after(2))
    }

    async fn route(&self, head: &Parts, body: &mut Incoming) -> Result<Reply, Problem> {
        self.authenticate(head)?;
        let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        let not_found = || Problem::new(problem::NOT_FOUND, "");
        let is_post = head.method == Method::POST;
        let is_get = matches!(head.method, Method::GET | Method::HEAD);
        match path[..] {
            ["v1", "jobs"] if is_post => self.create_job(head, body, false).await,
            ["v1", "jobs"] if is_get => {
                self.engine()?;
                let permit = permit(&LARGE_RESPONSES).await;
                let (jobs, throttled) = (self.mirror.jobs(), self.throttled());
                let mut jobs: Vec<&JobStatus> = jobs.iter().map(|job| &**job).collect();
                jobs.sort_by_key(|job| (job.created_at, &job.job_id));
                let jobs: Vec<_> = jobs.iter().map(|it| explained(it, &throttled)).collect();
                let jobs = serde_json::to_string(&jobs).unwrap_or_default();
                let bytes = format!("{{\"jobs\":{jobs}}}\n").into_bytes();
                let body = Bytes::from_owner(Held { bytes, permit });
                Ok(content(StatusCode::OK, "application/json", body))
            }
            ["v1", "jobs", id] if is_get => {
                let found = change_job(self.engine()?, id, |_| ())
                    .await
                    .map_err(broker)?;
                let job = found.ok_or_else(not_found)?;
                Ok(json(StatusCode::OK, &explained(&job, &self.throttled())))
            }
            ["v1", "jobs", id, "results"] if is_get => {
                self.results(id, head.uri.query().unwrap_or_default()).await
            }
            ["v1", "jobs", id, operation] if is_post && OPERATIONS.contains(&operation) => {
                self.operate(id, operation, &head.headers).await
            }
            ["v1", "revalidate"] if is_post => self.create_job(head, body, true).await,
            ["v1", "problems", name] => {
                let kind = problem::KINDS.iter().find(|kind| kind.name == name);
                let kind = kind.ok_or_else(not_found)?;
                let page = format!("{} ({})\n\n{}\n", kind.title, kind.status, kind.advice);
                Ok(text(StatusCode::OK, page))
            }
            _ => Err(not_found()),
        }
    }

    /// The applications whose origins demand a pause.
    fn throttled(&self) -> HashMap<String, u64> {
        let jobs = self.mirror.jobs();
        jobs::throttled(jobs.iter().map(|job| &**job), unix_micros() / 1000)
    }

    /// Up to [`RESULTS_MAX`] results as NDJSON, from the position `from` on. The last line contains the next position.
    async fn results(&self, id: &str, query: &str) -> Result<Reply, Problem> {
        let engine = self.engine()?;
        if self.mirror.job(id).is_none() {
            return Err(Problem::new(problem::NOT_FOUND, ""));
        }
        let from = query.strip_prefix("from=").map_or(Ok(0), str::parse);
        let from = from.map_err(|_| invalid("`from`: use `next` from an earlier response"))?;
        let permit = permit(&LARGE_RESPONSES).await;
        let mut results = engine.results(id, from).await.map_err(broker)?;
        let (mut bytes, mut next) = (Vec::new(), from);
        for _ in 0..RESULTS_MAX {
            let Ok(Some(result)) = timeout(RESULT_WAIT, results.next()).await else {
                break;
            };
            let (position, payload) = result.map_err(broker)?;
            bytes.extend_from_slice(&payload);
            bytes.push(b'\n');
            next = position + 1;
            if bytes.len() >= RESULT_BYTES {
                break;
            }
        }
        bytes.extend_from_slice(format!("{}\n", object!({ "next": next })).as_bytes());
        let body = Bytes::from_owner(Held { bytes, permit });
        Ok(content(StatusCode::OK, "application/x-ndjson", body))
    }

    async fn operate(
        &self,
        id: &str,
        operation: &str,
        headers: &http::HeaderMap,
    ) -> Result<Reply, Problem> {
        if headers.contains_key(header::ORIGIN) {
            return Err(Problem::new(
                problem::MEDIA_TYPE,
                "requests with an Origin header are rejected",
            ));
        }
        let engine = self.engine()?;
        let mut applied = Ok(());
        let (now, throttled) = (unix_micros() / 1000, self.throttled());
        let change = |job: &mut JobStatus| {
            let is_throttled = throttled.contains_key(&job.app_name);
            applied = apply(operation, job, is_throttled, now);
        };
        let changed = change_job(engine, id, change).await.map_err(broker)?;
        let job = changed.ok_or_else(|| Problem::new(problem::NOT_FOUND, ""))?;
        applied.map_err(|conflict| Problem::new(problem::CONFLICT, conflict))?;
        if operation == "resume" {
            // The demand can be that of another job, even of one that has ended.
            let jobs = self.mirror.jobs().into_iter();
            for other in jobs.filter(|it| it.app_name == job.app_name && is_throttled(it, now)) {
                let lift = |job: &mut JobStatus| job.throttled_until = None;
                let lifted = change_job(engine, &other.job_id, lift).await;
                lifted.map_err(broker)?;
            }
        }
        tracing::info!(job = id, operation, "job changed by a client");
        Ok(json(StatusCode::OK, &job))
    }
}

const OPERATIONS: [&str; 4] = ["pause", "resume", "cancel", "acknowledge"];

/// Applies an operation to a job at `now`, whose application may be throttled. The error states why the job does not permit it.
fn apply(
    operation: &str,
    job: &mut JobStatus,
    is_throttled: bool,
    now: u64,
) -> Result<(), &'static str> {
    match operation {
        "acknowledge" if !job.is_cancelled() => return Err("the job must be cancelled first"),
        "acknowledge" => job.acknowledged = true,
        _ if !job.is_open() => return Err("the job has ended"),
        "pause" => jobs::pause(job, now),
        "resume" if job.revalidator_state == RevalidatorState::Suspended => jobs::resume(job, now),
        "resume" if is_throttled => job.throttled_until = None,
        "resume" => return Err("the job is neither suspended nor throttled"),
        _ => {
            jobs::cancel(job, "cancelled by an operator", now);
            job.acknowledged = true;
        }
    }
    Ok(())
}

/// Parses a JSON object.
fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    // serde also accepts an array, with the values of all fields in order.
    let value: Value = serde_json::from_slice(body).map_err(|error| invalid(error.to_string()))?;
    if !value.is_object() {
        return Err(invalid("the body is not a JSON object"));
    }
    serde_json::from_value(value).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_depend_on_the_state() {
        let mut it = JobStatus::default();
        let apply = |operation: &str, job: &mut JobStatus, now| apply(operation, job, false, now);
        assert!(apply("resume", &mut it, 1).is_err());
        assert!(apply("acknowledge", &mut it, 1).is_err());
        // Only the origin's demand is lifted.
        let waiting = it.clone();
        super::apply("resume", &mut it, true, 1).unwrap();
        assert_eq!(it, waiting);
        apply("pause", &mut it, 1).unwrap();
        assert!(jobs::is_suspended(&it, u64::MAX));
        apply("resume", &mut it, 2).unwrap();
        assert!(!jobs::is_suspended(&it, 2));
        apply("cancel", &mut it, 3).unwrap();
        assert!(it.is_cancelled() && it.acknowledged && it.ended_at == Some(3));
        for operation in ["pause", "resume", "cancel"] {
            assert_eq!(apply(operation, &mut it, 4), Err("the job has ended"));
        }
    }
}
