//! The edge: HTTP/1.1 in, cookies into the log.
//!
//! hyper reads, parses and answers; this module decides what a request means. It never waits for anything but
//! the client: appending is a short critical section, and an answer is sent when the cookie is in the log.
//!
//! Timeouts come from the watched accept loop, because hyper's own timer costs an allocation and a timer entry
//! for each request; answers to pipelined requests are collected in [`coalesce`].

mod coalesce;
pub mod request;
pub mod response;

use std::{convert::Infallible, future::ready, pin::Pin, sync::Arc};

use cookiesync::process::listen::{self, Activity, Limits, WatchedStream};
use http::{Method, Request, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    coalesce::Coalesce,
    request::{IdLimits, Rejection, Scratch},
    response::Outcome,
};
use crate::log::Log;

/// Longest head of a request; a longer one is answered with 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Bytes read and answers collected at once on one connection.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The edge of one producer.
#[derive(Debug)]
pub struct Edge {
    log: Log,
    ids: IdLimits,
    metrics: Metrics,
}

impl Edge {
    /// An edge that appends to `log`.
    #[must_use]
    pub fn new(log: Log, ids: IdLimits, metrics: Metrics) -> Self {
        Self { log, ids, metrics }
    }

    /// Accepts connections until `stop`, then lets each finish the requests it has read.
    pub async fn serve(
        self,
        listener: TcpListener,
        limits: Limits,
        metrics: listen::Metrics,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) {
        let edge = Arc::new(self);
        let stopping = stop.clone();
        let serve = move |stream, activity| {
            Arc::clone(&edge).connection(stream, activity, stopping.clone())
        };
        listen::accept(listener, limits, metrics, tracker, stop, serve).await;
    }

    async fn connection(
        self: Arc<Self>,
        stream: WatchedStream,
        activity: Arc<Activity>,
        stopping: CancellationToken,
    ) {
        let service = service_fn(|request: Request<Incoming>| {
            activity.request();
            let outcome = self.handle(&request);
            self.metrics.count(outcome);
            ready(Ok::<_, Infallible>(outcome.response()))
        });
        let mut connection = http1::Builder::new()
            .max_buf_size(BUFFER_BYTES_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(Coalesce::new(stream)), service);
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            () = stopping.cancelled() => {
                Pin::new(&mut connection).graceful_shutdown();
                (&mut connection).await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "edge connection ended");
            if error.is_parse_too_large() {
                self.metrics.too_large.inc();
            } else if error.is_parse() {
                self.metrics.malformed.inc();
            } else {
                return;
            }
            let stream = connection.into_parts().io.into_inner();
            if let Err(error) = stream.linger().await {
                tracing::debug!(%error, "refused client left before its answer");
            }
        }
    }

    fn handle<B>(&self, request: &Request<B>) -> Outcome {
        if !matches!(request.uri().path(), "/" | "/sync") {
            return Outcome::NotFound;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Outcome::MethodNotAllowed;
        }
        let cookies = request.headers().get_all(header::COOKIE);
        let cookies = cookies.iter().map(header::HeaderValue::as_bytes);
        let query = request.uri().query().unwrap_or_default();
        let mut scratch = Scratch::default();
        match request::parse(query, cookies, &self.ids, &mut scratch) {
            Ok(cookie) => match self.log.append(&cookie) {
                Ok(()) => Outcome::Accepted,
                Err(_) => Outcome::Draining,
            },
            Err(rejection) => Outcome::Rejected(rejection),
        }
    }
}

/// `producer_edge_requests_total` by outcome, resolved once.
#[derive(Debug)]
pub struct Metrics {
    accepted: IntCounter,
    rejected: Vec<IntCounter>,
    not_found: IntCounter,
    method_not_allowed: IntCounter,
    draining: IntCounter,
    too_large: IntCounter,
    malformed: IntCounter,
}

impl Metrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new(
                "producer_edge_requests_total",
                "Requests of the edge by outcome; every outcome but \"accepted\" left nothing in the log.",
            ),
            &["outcome"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        let outcome = |label: &str| requests.with_label_values(&[label]);
        Ok(Self {
            accepted: outcome("accepted"),
            rejected: Rejection::ALL
                .iter()
                .map(|rejection| outcome(rejection.label()))
                .collect(),
            not_found: outcome("not_found"),
            method_not_allowed: outcome("method_not_allowed"),
            draining: outcome("draining"),
            too_large: outcome("head_too_large"),
            malformed: outcome("malformed"),
        })
    }

    fn count(&self, outcome: Outcome) {
        match outcome {
            Outcome::Accepted => self.accepted.inc(),
            Outcome::Rejected(rejection) => self.rejected[rejection as usize].inc(),
            Outcome::NotFound => self.not_found.inc(),
            Outcome::MethodNotAllowed => self.method_not_allowed.inc(),
            Outcome::Draining => self.draining.inc(),
        }
    }
}
