//! Error responses of the API (problem details). Their type is `about:blank`: the status classifies the problem, and
//! the detail states its cause.

use axum::extract::rejection::PathRejection;
pub(super) use runtime::problem::Problem;
use runtime::reply::Reply;

runtime::problem_kinds! {
    INVALID BAD_REQUEST
    UNAUTHORIZED UNAUTHORIZED
    FORBIDDEN FORBIDDEN
    NOT_FOUND NOT_FOUND
    METHOD METHOD_NOT_ALLOWED
    CONFLICT CONFLICT
    SLOW REQUEST_TIMEOUT
    TOO_LARGE PAYLOAD_TOO_LARGE
    MEDIA_TYPE UNSUPPORTED_MEDIA_TYPE
    WRONG_PRODUCER MISDIRECTED_REQUEST
    OTHER_BODY UNPROCESSABLE_ENTITY
    TOO_MANY TOO_MANY_REQUESTS
    UNAVAILABLE SERVICE_UNAVAILABLE
}

pub(super) fn draining() -> Problem {
    Problem::new(UNAVAILABLE, "this producer is shutting down: use another").retry_after(1)
}

/// The response of a handler.
pub(super) fn respond(handled: Result<Reply, Problem>) -> Reply {
    handled.unwrap_or_else(|problem| problem.reply())
}

pub(super) fn invalid_path(rejection: PathRejection) -> Problem {
    Problem::new(INVALID, rejection.body_text())
}
