//! The debug endpoints of the admin port: the log filter and CPU profiles. They change the process or cost CPU time, so they
//! need `--debug-endpoints`.

mod profile;

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    caller,
    logging::{self, FILTER_BYTES_MAX, Filter},
    reply::{Reply, text},
};

/// Reads and changes the log filter.
const LOG_FILTER: &str = "/log-filter";

/// Maximum time to receive a filter, which fits in one packet.
const FILTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes a CPU profile.
const PROFILE: &str = "/debug/profile";

/// Whether [`serve`] handles this path.
pub(super) fn is_page(path: &str) -> bool {
    path == LOG_FILTER || path.starts_with("/debug")
}

/// Serves a debug endpoint. A running profile is cancelled by `stop`.
pub(super) async fn serve(
    enabled: bool,
    request: Request<Incoming>,
    stop: CancellationToken,
) -> Reply {
    if !enabled {
        return text(
            StatusCode::NOT_FOUND,
            "disabled; start the process with --debug-endpoints\n",
        );
    }
    if caller::is_cross_site(request.headers()) {
        let reason = "cross-site requests are rejected\n";
        return text(StatusCode::FORBIDDEN, reason);
    }
    match (request.uri().path(), request.method()) {
        (LOG_FILTER, _) => log_filter(request).await,
        (PROFILE, &Method::GET) => profile::serve(request.uri().clone(), stop).await,
        (PROFILE, _) => method_not_allowed("GET"),
        _ => text(
            StatusCode::NOT_FOUND,
            "not found; use /debug/profile?seconds=10 or /log-filter\n",
        ),
    }
}

async fn log_filter<B>(request: Request<B>) -> Reply
where
    B: Body,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    match *request.method() {
        Method::GET => match logging::filter() {
            Some(filter) => text(StatusCode::OK, format!("{filter}\n")),
            None => text(StatusCode::NOT_FOUND, "this process has no log\n"),
        },
        Method::PUT => {
            // The filter may be followed by a line break.
            let body = Limited::new(request.into_body(), FILTER_BYTES_MAX + 2);
            match timeout(FILTER_TIMEOUT, body.collect()).await {
                Ok(Ok(body)) => put_filter(&body.to_bytes()),
                Err(_) => text(
                    StatusCode::REQUEST_TIMEOUT,
                    format!("the filter did not arrive within {FILTER_TIMEOUT:?}\n"),
                ),
                Ok(Err(error)) => text(
                    StatusCode::BAD_REQUEST,
                    format!("send a filter of at most {FILTER_BYTES_MAX} bytes ({error})\n"),
                ),
            }
        }
        _ => method_not_allowed("GET, PUT"),
    }
}

fn put_filter(body: &Bytes) -> Reply {
    let filter = std::str::from_utf8(body)
        .map_err(|_| "the filter is not UTF-8".to_owned())
        .and_then(|body| body.parse::<Filter>());
    match filter {
        Ok(filter) if logging::set_filter(&filter) => {
            tracing::info!(%filter, "log filter changed through the admin port");
            text(StatusCode::OK, format!("{filter}\n"))
        }
        Ok(_) => text(StatusCode::NOT_FOUND, "this process has no log\n"),
        Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

pub(super) fn method_not_allowed(allowed: &'static str) -> Reply {
    let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, format!("use {allowed}\n"));
    let allowed = header::HeaderValue::from_static(allowed);
    reply.headers_mut().insert(header::ALLOW, allowed);
    reply
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        pin::Pin,
        task::{Context, Poll},
    };

    use http_body::Frame;

    use super::*;

    /// A body that never yields a frame.
    struct Silent;

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn filter_that_does_not_arrive_times_out() {
        let request = Request::put(LOG_FILTER).body(Silent).unwrap();
        let reply = log_filter(request).await;
        assert_eq!(reply.status(), StatusCode::REQUEST_TIMEOUT);
    }
}
