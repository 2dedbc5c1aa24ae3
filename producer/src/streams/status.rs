//! Final statuses of streams and other calls, and their trailers.

use http::HeaderMap;
use tonic::Status;

/// Status of a stream that was superseded.
pub(crate) fn superseded() -> Status {
    Status::aborted("superseded by a newer stream of this subscriber")
}

/// Status of a call that ends because the producer is draining.
pub(crate) fn draining() -> Status {
    Status::unavailable("the producer is shutting down")
}

/// Trailers with `status`.
pub(crate) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if let Err(error) = status.add_header(&mut trailers) {
        tracing::debug!(%error, "failed to encode a status as headers");
    }
    trailers
}
