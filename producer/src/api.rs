//! The API: bulk input of matches, deletions and their receipts, over HTTP and JSON.
//!
//! Its clients are servers: partners that send matches without a browser, and services that process deletion requests
//! of users. The API has its own port. Without a token file, the port is on loopback and rejects requests from pages of
//! other sites.
//!
//! # Bounds
//!
//! Connections, request headers, bodies, rows and memory per request are bounded (`api/body.rs`); each token has a
//! limit of requests and rows. No lock is held across an await, and parsing yields after every few kilobytes, so that
//! the edge is not delayed.
//!
//! No user id, buyer uid or token occurs in a log message.

mod body;
mod bulk;
mod cookies;
mod deletions;
mod idempotency;
mod problem;
mod quotas;
mod receipts;
pub mod tokens;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{delete, get, post},
};
use http::{HeaderMap, header};
use hyper::body::Incoming;
use metric_defs::producer;
use prometheus::{IntCounter, IntCounterVec};
use runtime::{
    caller, http_server,
    listen::{self, Limits, Listener, Stage},
    metrics::Registry,
    reload::Reloader,
    tls::server::Handshakes,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::{
    bulk::ROW_ERRORS,
    idempotency::Idempotency,
    problem::{Early, FORBIDDEN, KINDS, METHOD, NOT_FOUND, Problem, UNAUTHORIZED},
    quotas::Quotas,
    receipts::Unconfirmed,
    tokens::{Client, Right},
};
use crate::{edge::dsps::Dsps, log::Log, shaping::Shaping, streams::subscribers::Subscribers};

/// Description of the API in OpenAPI 3.1.
const OPENAPI: &str = include_str!("api/openapi.json");

/// Connection limits of the port. The body of a bulk request has a separate timeout.
const LIMITS: Limits = Limits {
    connections_max: 256,
    connections_per_address_max: Some(64),
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(30)),
};

/// The API of one producer.
#[derive(Debug, Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

/// Settings of the API.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Number of nodes that must have stored a deletion durably before `DELETE` responds without `at_risk`.
    pub deletion_confirmations: usize,
    /// Maximum requests per second of one token.
    pub requests_per_second: u64,
    /// Maximum rows per second of one token.
    pub rows_per_second: u64,
}

/// The parts of a producer that the API uses.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Id of the producer, used in receipts.
    pub producer_id: String,
    /// The log, to which matches and deletions are appended.
    pub log: Log,
    /// The DSP rate limits; `None` without `--limits`.
    pub shaping: Option<Shaping>,
    /// Known DSPs.
    pub dsps: Dsps,
    /// The subscribers, which include all nodes.
    pub subscribers: Subscribers,
    /// Cancelled when the producer drains.
    pub draining: CancellationToken,
    /// Counts deletions by scope.
    pub deletions: IntCounterVec,
    /// Settings of the API.
    pub config: Config,
}

#[derive(Debug)]
struct Inner {
    parts: Parts,
    tokens: Option<Arc<Reloader<tokens::File>>>,
    quotas: Quotas,
    idempotency: Idempotency,
    metrics: Metrics,
    unconfirmed: Unconfirmed,
}

/// Metrics of the API.
#[derive(Debug, Clone)]
struct Metrics {
    requests: IntCounterVec,
    rows: IntCounterVec,
    at_risk: IntCounter,
}

impl Api {
    /// An API for `parts`.
    ///
    /// # Errors
    /// When a metric is registered already.
    pub fn new(
        parts: Parts,
        tokens: Option<Arc<Reloader<tokens::File>>>,
        registry: &Registry,
    ) -> anyhow::Result<Self> {
        let metrics = Metrics {
            requests: registry.add(producer::API_REQUESTS)?,
            rows: registry.add(producer::API_ROWS)?,
            at_risk: registry.add(producer::DELETIONS_AT_RISK)?,
        };
        metrics.rows.with_label_values(&["accepted"]);
        for reason in ROW_ERRORS {
            metrics.rows.with_label_values(&[reason]);
        }
        for kind in KINDS {
            metrics.requests.with_label_values(&[kind.status.as_str()]);
        }
        let api = Self {
            inner: Arc::new(Inner {
                quotas: Quotas::new(parts.config),
                idempotency: Idempotency::default(),
                parts,
                tokens,
                metrics,
                unconfirmed: Unconfirmed::default(),
            }),
        };
        let read = api.clone();
        registry.read(move || read.open_families())?;
        Ok(api)
    }

    fn router(&self) -> Router {
        Router::new()
            .route("/v1/cookies", post(cookies::add))
            .route("/v1/deletions", post(deletions::delete_many))
            .route("/v1/users/{user}", delete(deletions::delete_one))
            .route("/v1/users/{user}/dsps/{dsp}", delete(deletions::delete_one))
            .route("/v1/dsps/{dsp}", delete(deletions::delete_one))
            .route("/v1/receipts/{receipt}", get(receipts::show))
            .route("/v1/openapi.json", get(openapi))
            .fallback(async || {
                let detail = "GET /v1/openapi.json lists all paths";
                Early::from(Problem::new(NOT_FOUND, detail))
            })
            .method_not_allowed_fallback(async || {
                let detail = "GET /v1/openapi.json lists all methods";
                Early::from(Problem::new(METHOD, detail))
            })
            .layer(middleware::from_fn_with_state(
                self.clone(),
                check_and_count,
            ))
            // Handlers read bodies themselves, within their own bounds.
            .layer(DefaultBodyLimit::disable())
            .with_state(self.clone())
    }

    /// Serves the API until the stage stops.
    pub async fn serve(
        self,
        listener: impl Listener,
        tls: Option<Arc<Handshakes>>,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let router = self.router();
        let handler = move |request: http::Request<Incoming>| {
            let response = router.clone().oneshot(request);
            async move {
                let Ok(response) = response.await;
                response
            }
        };
        http_server::serve(listener, tls, LIMITS, metrics, stage, handler).await;
    }

    /// Returns the client of a request, if it has the right `right`.
    fn authorize(&self, headers: &HeaderMap, right: Right) -> Result<Arc<Client>, Problem> {
        let Some(tokens) = &self.inner.tokens else {
            return Ok(tokens::local());
        };
        let client = tokens.current().authenticate(headers);
        let client = client.map_err(|error| Problem::new(UNAUTHORIZED, error.to_string()))?;
        if client.permissions.has(right) {
            Ok(client)
        } else {
            let detail = format!("the token does not grant the right `{right}`");
            Err(Problem::new(FORBIDDEN, detail))
        }
    }

    /// Admits a request that changes something, of a client with `right`.
    fn admit(&self, headers: &HeaderMap, right: Right) -> Result<Arc<Client>, Problem> {
        let client = self.authorize(headers, right)?;
        if self.inner.parts.draining.is_cancelled() {
            return Err(problem::draining());
        }
        self.inner.quotas.request(&client.name)?;
        Ok(client)
    }
}

/// Rejects requests of pages of other sites if the port needs no tokens, and counts every response.
async fn check_and_count(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (headers, uri) = (request.headers(), request.uri());
    let is_foreign = api.inner.tokens.is_none() && caller::is_foreign(headers, uri);
    let response = if is_foreign {
        let detail = "without --api-tokens, only local programs may use this port";
        Early::from(Problem::new(FORBIDDEN, detail)).into_response()
    } else {
        next.run(request).await
    };
    let status = response.status();
    let requests = &api.inner.metrics.requests;
    requests.with_label_values(&[status.as_str()]).inc();
    response
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests;
