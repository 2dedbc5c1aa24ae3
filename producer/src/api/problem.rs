//! Problem types of the API; the OpenAPI file lists them.

use axum::{
    extract::rejection::PathRejection,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
pub(super) use runtime::problem::Problem;
use runtime::reply::Reply;

runtime::problem_kinds! {
    INVALID BAD_REQUEST "invalid-request" "Invalid request"
    UNAUTHORIZED UNAUTHORIZED "unauthorized" "Missing or invalid token"
    FORBIDDEN FORBIDDEN "forbidden" "Not permitted"
    NOT_FOUND NOT_FOUND "not-found" "Not found"
    METHOD METHOD_NOT_ALLOWED "method-not-allowed" "Method not allowed"
    CONFLICT CONFLICT "in-progress" "A request with this Idempotency-Key is in progress"
    SLOW REQUEST_TIMEOUT "too-slow" "The body did not arrive in time"
    TOO_LARGE PAYLOAD_TOO_LARGE "too-large" "The body is too large"
    MEDIA_TYPE UNSUPPORTED_MEDIA_TYPE "media-type" "Unsupported media type or encoding"
    WRONG_PRODUCER MISDIRECTED_REQUEST "wrong-producer" "The receipt is from another producer"
    TOO_MANY TOO_MANY_REQUESTS "rate-limit" "Rate limit exceeded"
    NODES_LAG TOO_MANY_REQUESTS "nodes-lag" "A node lags behind"
    DRAINING SERVICE_UNAVAILABLE "draining" "The producer is shutting down"
}

pub(super) fn draining() -> Problem {
    Problem::new(DRAINING, "use another producer").retry_after(1)
}

/// A response that ends a request early: a problem, or that of an earlier request.
pub(super) struct Early(pub(super) Box<Reply>);

impl From<Reply> for Early {
    fn from(reply: Reply) -> Self {
        Self(Box::new(reply))
    }
}

impl From<Problem> for Early {
    fn from(problem: Problem) -> Self {
        let mut reply = problem.reply();
        // Otherwise the rest of the body would be parsed as the next request.
        if reply.status() != StatusCode::NOT_FOUND {
            let close = HeaderValue::from_static("close");
            reply.headers_mut().insert(header::CONNECTION, close);
        }
        reply.into()
    }
}

impl From<PathRejection> for Early {
    fn from(rejection: PathRejection) -> Self {
        Problem::new(INVALID, rejection.body_text()).into()
    }
}

impl IntoResponse for Early {
    fn into_response(self) -> Response {
        (*self.0).into_response()
    }
}
