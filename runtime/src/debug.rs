//! What the admin port offers only with `--debug-endpoints`, because it changes the process or costs it time: the filter
//! of the log, and a profile of processor time.

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

/// Where the log's filter is read and changed.
const LOG_FILTER: &str = "/log-filter";

/// Longest wait for a whole filter: it is one packet.
const FILTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a profile is taken.
const PROFILE: &str = "/debug/profile";

/// Whether the answer to this path is one of [`reply`]'s.
pub(super) fn is_page(path: &str) -> bool {
    path == LOG_FILTER || path.starts_with("/debug")
}

/// Answers a request for one of these pages; what takes time ends at once when `stop` is cancelled.
pub(super) async fn reply(
    enabled: bool,
    request: Request<Incoming>,
    stop: CancellationToken,
) -> Reply {
    if !enabled {
        return text(
            StatusCode::NOT_FOUND,
            "this is off: start the process with --debug-endpoints\n",
        );
    }
    if caller::is_cross_site(request.headers()) {
        let word = "pages of other sites see nothing here\n";
        return text(StatusCode::FORBIDDEN, word);
    }
    match (request.uri().path(), request.method()) {
        (LOG_FILTER, _) => log_filter(request).await,
        (PROFILE, &Method::GET) => profile::reply(request.uri().clone(), stop).await,
        (PROFILE, _) => method_not_allowed("GET"),
        _ => text(
            StatusCode::NOT_FOUND,
            "there are /debug/profile?seconds=10 and /log-filter\n",
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
            None => text(StatusCode::NOT_FOUND, "this process keeps no log\n"),
        },
        Method::PUT => {
            // A line's end is not part of the filter.
            let body = Limited::new(request.into_body(), FILTER_BYTES_MAX + 2);
            match timeout(FILTER_TIMEOUT, body.collect()).await {
                Ok(Ok(body)) => put_filter(&body.to_bytes()),
                Err(_) => text(
                    StatusCode::REQUEST_TIMEOUT,
                    format!("the filter was not there within {FILTER_TIMEOUT:?}\n"),
                ),
                Ok(Err(error)) => text(
                    StatusCode::BAD_REQUEST,
                    format!("a filter of at most {FILTER_BYTES_MAX} bytes is wanted ({error})\n"),
                ),
            }
        }
        _ => method_not_allowed("GET, PUT"),
    }
}

fn put_filter(body: &Bytes) -> Reply {
    let filter = std::str::from_utf8(body)
        .map_err(|_| "is not text".to_owned())
        .and_then(|body| body.parse::<Filter>());
    match filter {
        Ok(filter) if logging::set_filter(&filter) => {
            tracing::info!(%filter, "the log filter was changed by the admin port");
            text(StatusCode::OK, format!("{filter}\n"))
        }
        Ok(_) => text(StatusCode::NOT_FOUND, "this process keeps no log\n"),
        Err(wrong) => text(StatusCode::BAD_REQUEST, format!("{wrong}\n")),
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

    /// Of which nothing ever comes.
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
    async fn filter_that_does_not_come_is_not_waited_for() {
        let request = Request::put(LOG_FILTER).body(Silent).unwrap();
        let reply = log_filter(request).await;
        assert_eq!(reply.status(), StatusCode::REQUEST_TIMEOUT);
    }
}
