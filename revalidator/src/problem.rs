//! Problem types of the API (RFC 9457).

pub use runtime::problem::Problem;

runtime::problem_kinds! {
    NOT_FOUND NOT_FOUND "not-found"
        "Unknown job, path or method"
        "See docs/revalidator.md for all paths."
    INVALID UNPROCESSABLE_ENTITY "invalid-request"
        "Invalid request"
        "The detail names the error. Nothing was created or changed."
    MEDIA_TYPE UNSUPPORTED_MEDIA_TYPE "media-type"
        "The body must be JSON or NDJSON"
        "Send Content-Type: application/json, or application/x-ndjson for assets. Other types are rejected because browsers send them \
         for pages of other sites."
    TOO_LARGE PAYLOAD_TOO_LARGE "too-large"
        "Request body too large"
        "Send up to 10,000,000 assets of up to 4 KiB each and 1 GiB in total, or up to 512 KiB of JSON."
    CONFLICT CONFLICT "conflict"
        "The state of the job does not permit this"
        "The detail names the state."
    TOO_MANY TOO_MANY_REQUESTS "too-many-jobs"
        "Too many open jobs, uploads of assets, or single checks"
        "Retry later. Limits: 1000 open jobs, 4 uploads whose assets are not yet transmitted to workers, and 50 assets per second in \
         single checks."
    UNAUTHORIZED UNAUTHORIZED "unauthorized"
        "Missing or invalid token"
        "Send Authorization: Bearer TOKEN with a token from the file --token-file."
    MISDIRECTED MISDIRECTED_REQUEST "misdirected"
        "Cross-site requests and non-loopback hosts are rejected"
        "Use 127.0.0.1, ::1 or localhost as the host."
    BROKER SERVICE_UNAVAILABLE "broker-unavailable"
        "The NATS server, or the directory for temporary files, is unavailable or full"
        "Retry after the time in Retry-After. A job may have been created."
}

/// The request is invalid.
pub(crate) fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(INVALID, detail)
}

/// The broker or a temporary file failed.
pub(crate) fn broker(error: anyhow::Error) -> Problem {
    tracing::debug!(error = format!("{error:#}"), "request failed");
    Problem::new(BROKER, "").retry_after(2)
}
