//! The statuses with which streams and other calls end, and their trailers.

use http::HeaderMap;
use tonic::Status;

/// The status of a stream whose queue another stream has taken.
pub(crate) fn superseded() -> Status {
    Status::aborted("another stream took this subscriber's queue")
}

/// The status of a call that ends because the producer drains.
pub(crate) fn draining() -> Status {
    Status::unavailable("the producer is shutting down")
}

/// The trailers that carry `status`.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if let Err(error) = status.add_header(&mut trailers) {
        tracing::debug!(%error, "status does not fit a header");
    }
    trailers
}
