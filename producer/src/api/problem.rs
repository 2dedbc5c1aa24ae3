//! Problems (RFC 9457): why a request failed.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value};

/// The kinds of problems; `docs/deletion.md` and the OpenAPI file list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Conflict,
    Slow,
    TooLarge,
    MediaType,
    WrongProducer,
    TooMany,
    NodesLag,
    Draining,
}

impl Kind {
    /// Its name, its status and its title.
    const fn parts(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::Invalid => (
                "invalid-request",
                StatusCode::BAD_REQUEST,
                "Invalid request",
            ),
            Self::Unauthorized => (
                "unauthorized",
                StatusCode::UNAUTHORIZED,
                "Missing or invalid token",
            ),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN, "Not permitted"),
            Self::NotFound => ("not-found", StatusCode::NOT_FOUND, "Not found"),
            Self::MethodNotAllowed => (
                "method-not-allowed",
                StatusCode::METHOD_NOT_ALLOWED,
                "Method not allowed",
            ),
            Self::Conflict => (
                "in-progress",
                StatusCode::CONFLICT,
                "A request with this Idempotency-Key is in progress",
            ),
            Self::Slow => (
                "too-slow",
                StatusCode::REQUEST_TIMEOUT,
                "The body did not arrive in time",
            ),
            Self::TooLarge => (
                "too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "The body is too large",
            ),
            Self::MediaType => (
                "media-type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Unsupported media type or encoding",
            ),
            Self::WrongProducer => (
                "wrong-producer",
                StatusCode::MISDIRECTED_REQUEST,
                "The receipt is from another producer",
            ),
            Self::TooMany => (
                "rate-limit",
                StatusCode::TOO_MANY_REQUESTS,
                "Rate limit exceeded",
            ),
            Self::NodesLag => (
                "nodes-lag",
                StatusCode::TOO_MANY_REQUESTS,
                "A node lags behind",
            ),
            Self::Draining => (
                "draining",
                StatusCode::SERVICE_UNAVAILABLE,
                "The producer is shutting down",
            ),
        }
    }
}

/// A problem of one request.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    kind: Kind,
    detail: String,
    retry_after: Option<u64>,
    more: Map<String, Value>,
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
            retry_after: None,
            more: Map::new(),
        }
    }

    pub(super) fn draining() -> Self {
        Self::new(Kind::Draining, "use another producer").retry_after(1)
    }

    /// Adds a `Retry-After` in seconds.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// Adds a member to the body.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (name, status, title) = self.kind.parts();
        let body = Body {
            r#type: format!("/problems/{name}"),
            title,
            status: status.as_u16(),
            detail: &self.detail,
            more: self.more,
        };
        let body = serde_json::to_vec(&body).expect("maps of strings are JSON");
        let content_type = (header::CONTENT_TYPE, "application/problem+json");
        let mut response = (status, [content_type], body).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == Kind::Unauthorized {
            let bearer = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, bearer);
        }
        // What is left of the body would be taken for the next request.
        if status != StatusCode::NOT_FOUND {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}
