//! HTTP responses of the admin port and the APIs.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{Either, Full, combinators::UnsyncBoxBody};
use serde::Serialize;

/// A response, complete or streamed.
pub type Reply = Response<Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>>;

/// A plain text response.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    content(status, "text/plain; charset=utf-8", body)
}

/// A JSON response.
///
/// # Panics
/// If `body` is a map with keys other than strings.
pub fn json(status: StatusCode, body: &impl Serialize) -> Reply {
    let mut body = serde_json::to_vec(body).expect("maps of strings are JSON");
    body.push(b'\n');
    content(status, "application/json", body)
}

/// A response with headers that forbid caching, framing and content sniffing.
pub fn content(status: StatusCode, content_type: &str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body.into())));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    if let Ok(content_type) = HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    let no_frames = HeaderValue::from_static("frame-ancestors 'none'");
    headers.insert(header::CONTENT_SECURITY_POLICY, no_frames);
    reply
}
