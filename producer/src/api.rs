//! The HTTP API: accepts bulk matches and deletions, and reports which nodes have carried out a deletion.
//!
//! Its clients are servers: those of partners, which send matches without a browser, and those of services that process
//! users' deletion requests. The API has its own port. Without a token file, this port must be on loopback, and it
//! rejects requests that a browser sends for pages of other sites.
//!
//! # Bounds
//!
//! Connections, request headers, bodies, rows and memory per request are bounded (`api/body.rs`). Each token has a rate
//! limit for requests and one for rows. No lock is held across an await, and parsing yields after every few kilobytes,
//! so that the edge is not delayed.
//!
//! No user id, buyer uid or token occurs in a log message.

mod body;
mod bulk;
pub mod cookies;
mod deletions;
mod idempotency;
mod nodes;
mod problem;
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
    metrics::{Registry, as_f64, family},
    rate_limit::{HeaderFormat, Quota},
    reload::Reloader,
    tls::server::Handshakes,
    token,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::{
    bulk::row_outcomes,
    idempotency::Idempotency,
    problem::{FORBIDDEN, KINDS, METHOD, NOT_FOUND, Problem, TOO_MANY, UNAUTHORIZED, respond},
    tokens::Client,
};
use crate::{
    archive::NodeReports, config::ApiLimits, dsps::Dsps, inlet::Inlet, metrics::counters,
    rate_limits::RateLimits, streams::subscribers::Subscribers,
};

/// Indices of the rate limits.
const REQUESTS: usize = 0;
const ROWS: usize = 1;

/// Description of the API in OpenAPI 3.1.
const OPENAPI: &str = include_str!("api/openapi.json");

/// Connection limits of the port. The body of a bulk request has a separate timeout.
pub(crate) const LIMITS: Limits = Limits {
    connections_max: 256,
    connections_per_address_max: Some(64),
    request_timeout: Some(Duration::from_secs(10)),
    idle_timeout: Duration::from_secs(75),
    write_timeout: Some(Duration::from_secs(30)),
};

/// The values of [`Parts::rows_per_second`] and [`Parts::lag_max`] outside tests.
pub(crate) const ROWS_PER_SECOND: usize = 500_000;
pub(crate) const LAG_MAX: Duration = Duration::from_secs(5);

/// Maximum memory of all concurrent requests, and of the responses stored for repeated requests.
pub(crate) const MEMORY_BYTES: usize = LIMITS.connections_max * body::REQUEST_BYTES
    + token::TOKENS_MAX * idempotency::CLIENT_BYTES_MAX;

/// The API of one producer.
#[derive(Debug, Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

/// The components of a producer that the API uses.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Id of the producer, used in receipts.
    pub producer_id: String,
    /// The inlet, to which matches and deletions are appended.
    pub inlet: Inlet,
    /// The known DSPs, with their contracts.
    pub dsps: Dsps,
    /// The subscribers, which include all nodes.
    pub subscribers: Subscribers,
    /// The reports of nodes that read the archive, if there are any.
    pub node_reports: Option<NodeReports>,
    /// Cancelled when the producer drains.
    pub draining: CancellationToken,
    /// Limits of the API.
    pub limits: ApiLimits,
    /// Maximum number of rows of bulk requests per second for each token.
    pub rows_per_second: usize,
    /// Maximum lag of a node. Beyond it, bulk requests are rejected.
    pub lag_max: Duration,
}

#[derive(Debug)]
struct Inner {
    parts: Parts,
    tokens: Option<Arc<Reloader<tokens::File>>>,
    /// By name of the token.
    rates: RateLimits<String, 2>,
    idempotency: Idempotency,
    requests: IntCounterVec,
    rows: IntCounterVec,
    at_risk: IntCounter,
}

/// Registers the count of deletions, which the inlet counts for the API and for opt-outs.
///
/// # Errors
/// When the metric is registered already.
pub(crate) fn register_deletions(registry: &Registry, inlet: Inlet) -> prometheus::Result<()> {
    registry.read(move || {
        let deletions = inlet.deletions();
        let deletions = deletions.iter();
        let deletions = deletions.map(|(scope, count)| ([*scope], as_f64(*count)));
        vec![family(producer::DELETIONS_APPENDED, deletions)]
    })
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
        let statuses = KINDS.iter().map(|kind| kind.status.as_str());
        let rates = [parts.limits.api_requests_per_second, parts.rows_per_second];
        // A burst is the number allowed in one second.
        let rates = rates.map(|rate| (format!("{rate}/s"), rate as u64));
        Ok(Self {
            inner: Arc::new(Inner {
                rates: RateLimits::new(rates, 2 * token::TOKENS_MAX),
                idempotency: Idempotency::default(),
                at_risk: registry.add(producer::DELETIONS_AT_RISK)?,
                parts,
                tokens,
                requests: counters(registry, producer::API_REQUESTS, statuses)?,
                rows: counters(registry, producer::API_ROWS, row_outcomes())?,
            }),
        })
    }

    fn router(&self) -> Router {
        let delete_one = async |api, path, headers, uri| {
            respond(deletions::delete_one(api, path, headers, uri).await)
        };
        let receipt = async |api, path, headers| respond(receipts::show(api, path, headers).await);
        let forget = async |api, path, headers| respond(nodes::forget(api, path, headers).await);
        Router::new()
            .route("/v1/cookies", post(cookies::add))
            .route("/v1/deletions", post(deletions::delete_many))
            .route("/v1/users/{user}", delete(delete_one))
            .route("/v1/users/{user}/dsps/{dsp}", delete(delete_one))
            .route("/v1/dsps/{dsp}", delete(delete_one))
            .route("/v1/receipts/{receipt}", get(receipt))
            .route("/v1/nodes/{node}", delete(forget))
            .route("/v1/openapi.json", get(openapi))
            .fallback(async || {
                Problem::new(NOT_FOUND, "GET /v1/openapi.json lists all paths").reply()
            })
            .method_not_allowed_fallback(async || {
                Problem::new(METHOD, "GET /v1/openapi.json lists all methods").reply()
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
        limits: Limits,
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
        http_server::serve(listener, tls, limits, metrics, stage, handler).await;
    }

    /// Authenticates a request. Returns its client if it has this permission and is below its request rate.
    fn authorize(&self, headers: &HeaderMap, permission: &str) -> Result<Arc<Client>, Problem> {
        let client = match &self.inner.tokens {
            Some(tokens) => tokens.current().authenticate(headers),
            None => Ok(tokens::local()),
        };
        let client = client.map_err(|error| Problem::new(UNAUTHORIZED, error.to_string()))?;
        if !client.permissions.names.contains(permission) {
            let detail = format!("the token lacks the permission `{permission}`");
            return Err(Problem::new(FORBIDDEN, detail));
        }
        self.charge(&client, REQUESTS, 1, Duration::ZERO)?;
        Ok(client)
    }

    /// Admits a modifying request from a client with `permission`, unless the producer drains.
    fn admit(&self, headers: &HeaderMap, permission: &str) -> Result<Arc<Client>, Problem> {
        let client = self.authorize(headers, permission)?;
        if self.inner.parts.draining.is_cancelled() {
            return Err(problem::draining());
        }
        Ok(client)
    }

    /// Charges requests or rows to a client. Returns the time to wait, up to `wait_max`.
    ///
    /// # Errors
    /// 429 if the wait would be longer.
    fn charge(
        &self,
        client: &Client,
        rate: usize,
        count: u64,
        wait_max: Duration,
    ) -> Result<Duration, Problem> {
        let demand = [(rate, client.name.clone())];
        let charged = self
            .inner
            .rates
            .charge(&demand, count, Instant::now(), wait_max);
        charged.map_err(|retry_after| {
            let what = ["requests", "rows"][rate];
            let parts = &self.inner.parts;
            let quota = Quota {
                policy: what.to_owned(),
                limit: [parts.limits.api_requests_per_second, parts.rows_per_second][rate] as u64,
                window: Duration::from_secs(1),
                remaining: 0,
                reset: retry_after,
            };
            let mut problem = Problem::new(TOO_MANY, format!("too many {what} for this token"));
            quota.write(HeaderFormat::Draft, &mut problem.headers);
            problem.retry_after(retry_after.as_secs() + 1)
        })
    }
}

/// Rejects requests from pages of other sites if the port needs no tokens. Counts every response.
async fn check_and_count(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (headers, uri) = (request.headers(), request.uri());
    let is_foreign = api.inner.tokens.is_none() && caller::is_foreign(headers, uri);
    let response = if is_foreign {
        let detail = "without --api-tokens, only local programs may use this port";
        Problem::new(FORBIDDEN, detail).reply().into_response()
    } else {
        next.run(request).await
    };
    let status = response.status();
    let requests = &api.inner.requests;
    requests.with_label_values(&[status.as_str()]).inc();
    response
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

#[cfg(test)]
mod tests;
