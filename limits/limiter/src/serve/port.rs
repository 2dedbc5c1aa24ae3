//! The API port: HTTP/1.1 without TLS.
//!
//! All resources that an untrusted client can use are bounded: connections in total and per address, size and time of
//! headers and body, waiting reservations, counters, and the time that responses stay unread. A connection processes one
//! request at a time in its own task, so a client that does not read responses cannot send further requests.
//!
//! Without tokens the port listens on loopback, and requests from pages of other sites are rejected: by the host name, and
//! because requests with an effect must have a JSON content type, which such pages cannot send.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use runtime::listen::{self, Activity, ByteStream, Listener, Stage, WatchedStream};
use tokio_util::sync::CancellationToken;

use super::service::Service;

/// Maximum bytes of request headers, and of unread responses per connection.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Start of the year 10000, from which on hyper panics because a [`Date`](http::header::DATE) header cannot express it.
const DATES_END: Duration = Duration::from_secs(253_402_300_800);

/// Connection limits of the port.
#[must_use]
pub fn limits(connections_max: usize, per_address_max: usize) -> listen::Limits {
    listen::Limits {
        connections_max,
        connections_per_address_max: Some(per_address_max),
        request_timeout: Some(Duration::from_secs(10)),
        idle_timeout: Duration::from_secs(300),
        write_timeout: Some(Duration::from_secs(30)),
    }
}

impl Service {
    /// Serves until the stage stops. Waiting reservations then get their response immediately, before their slot.
    pub(super) async fn serve(
        self,
        listener: impl Listener,
        limits: listen::Limits,
        metrics: listen::Metrics,
        stage: Stage,
    ) {
        let (service, stop) = (Arc::new(self), stage.stop.clone());
        listen::accept(
            listener,
            limits.fixed(),
            metrics,
            stage,
            move |stream, activity| Arc::clone(&service).connection(stream, activity, stop.clone()),
        )
        .await;
    }

    async fn connection(
        self: Arc<Self>,
        stream: WatchedStream<impl ByteStream>,
        activity: Arc<Activity>,
        stop: CancellationToken,
    ) {
        if !has_date(SystemTime::now()) {
            tracing::debug!("connection closed: the system clock is after the year 9999");
            return;
        }
        let handler = service_fn(|request: Request<Incoming>| {
            let in_progress = activity.long_request();
            let (service, stop) = (&self, &stop);
            async move {
                let response = service.http(request, stop).await;
                drop(in_progress);
                Ok::<_, Infallible>(response)
            }
        });
        let mut protocol = http1::Builder::new();
        protocol.max_buf_size(HEAD_BYTES_MAX);
        let connection = protocol.serve_connection(TokioIo::new(stream), handler);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// Whether responses can have a `Date` now and for a minute.
fn has_date(now: SystemTime) -> bool {
    now + Duration::from_secs(60) < SystemTime::UNIX_EPOCH + DATES_END
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_after_the_year_9999_is_detected_before_hyper_panics() {
        let end = SystemTime::UNIX_EPOCH + DATES_END;
        let last = httpdate::fmt_http_date(end - Duration::from_nanos(1));
        assert_eq!(last, "Fri, 31 Dec 9999 23:59:59 GMT");
        assert!(std::panic::catch_unwind(|| httpdate::fmt_http_date(end)).is_err());
        assert!(has_date(SystemTime::now()));
        assert!(!has_date(end - Duration::from_secs(1)) && !has_date(end));
    }
}
