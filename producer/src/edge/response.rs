//! What the edge answers: the one place that maps outcomes to HTTP.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;

use super::request::Rejection;

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The cookie is in the log.
    Accepted,
    /// Bad input.
    Rejected(Rejection),
    /// No such path.
    NotFound,
    /// Neither GET nor HEAD.
    MethodNotAllowed,
    /// The producer drains; the client may ask another one.
    Draining,
}

impl Outcome {
    /// The answer to the client.
    #[must_use]
    pub fn response(self) -> Response<Full<Bytes>> {
        let (status, body) = match self {
            Self::Accepted => (StatusCode::OK, ""),
            Self::Rejected(rejection) => (StatusCode::BAD_REQUEST, rejection.reason()),
            Self::NotFound => (StatusCode::NOT_FOUND, "no such path; use / or /sync\n"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD\n"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        if !body.is_empty() {
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                header::HeaderValue::from_static("text/plain; charset=utf-8"),
            );
        }
        if self == Self::MethodNotAllowed {
            response
                .headers_mut()
                .insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}
